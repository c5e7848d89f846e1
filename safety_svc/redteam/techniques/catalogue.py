"""Every technique, family by family."""

from safety_svc.redteam.techniques import (
    characters,
    ciphers,
    documents,
    extraction,
    frames,
    pieces,
    turns,
)

TECHNIQUES = (
    *frames.TECHNIQUES,
    *ciphers.TECHNIQUES,
    *characters.TECHNIQUES,
    *pieces.TECHNIQUES,
    *turns.TECHNIQUES,
    *documents.TECHNIQUES,
    *extraction.TECHNIQUES,
)

"""Data of the chat model: sources, cleaning, made conversations, evaluation sets."""

from training.data.evaluation import is_refusal, matches, repetition
from training.data.prepare import prepare

__all__ = ["is_refusal", "matches", "prepare", "repetition"]

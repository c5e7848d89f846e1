-- Every decision of the safety service, one row each, without the text that was judged.
-- Rows are only ever added: the service's role may INSERT and SELECT, nothing else.

CREATE SCHEMA IF NOT EXISTS safety;

CREATE TABLE IF NOT EXISTS safety.decisions (
    audit_id          text PRIMARY KEY,           -- ULID
    decided_at        timestamptz NOT NULL,
    turn_id           text NOT NULL,
    account_id        text NOT NULL,
    tier              text NOT NULL,
    jurisdiction      text NOT NULL,              -- ISO 3166-1 alpha-2, or empty
    direction         text NOT NULL CHECK (direction IN ('prompt', 'reply')),
    choice_index      smallint NOT NULL,          -- which of the n answers; 0 for prompts
    action            text NOT NULL
                      CHECK (action IN ('allow', 'flag', 'redact', 'safe_complete', 'block')),
    category          text NOT NULL,              -- what decided; empty when allowed
    halt_offset       bigint,                     -- where a halted answer ends, in bytes
    byte_count        bigint NOT NULL,            -- how much text was judged
    categories        text[] NOT NULL,            -- of the findings, the strongest first
    scores            real[] NOT NULL,            -- of the findings, in the same order
    detectors         text[] NOT NULL,            -- of the findings, in the same order
    policy_version    text NOT NULL,
    policy_digest     text NOT NULL               -- SHA-256 of the policy's text
);

CREATE INDEX IF NOT EXISTS decisions_by_turn ON safety.decisions (turn_id);
CREATE INDEX IF NOT EXISTS decisions_by_account ON safety.decisions (account_id, decided_at);

GRANT USAGE ON SCHEMA safety TO chatmesh_safety;
GRANT SELECT, INSERT ON safety.decisions TO chatmesh_safety;

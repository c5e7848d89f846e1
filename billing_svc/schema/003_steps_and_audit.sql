-- Steps: a turn may call a model more than once. Everything here adds; rows and processes of the
-- version before go on as step 0.

ALTER TABLE billing.turns
    ADD COLUMN settled_unsent_count bigint,
    -- Steps 1, 2, … in their order; step 0 stands in the columns beside. In this row and not in a
    -- table of their own, because a turn is read with a row lock, and only the locked row itself
    -- is read as it is after waiting for the lock. See billing_svc/turn_rows.py for the form.
    ADD COLUMN later_steps jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN repair_time timestamptz,
    -- The audit's watermark: when the turn was checked as it is now, and the last entry of its
    -- ledger that was seen then. NULL: it is still to be checked.
    ADD COLUMN audit_time timestamptz,
    ADD COLUMN audit_entry_id bigint NOT NULL DEFAULT 0;
CREATE INDEX turns_unaudited ON billing.turns (turn_id) WHERE audit_time IS NULL;

-- Whoever changes a turn that was checked has it checked again. The condition costs nothing while a
-- turn runs: it was not checked yet.
CREATE FUNCTION billing.ask_for_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.audit_time := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER turns_audit BEFORE UPDATE ON billing.turns FOR EACH ROW
    WHEN (OLD.audit_time IS NOT NULL AND NEW.audit_time IS NOT DISTINCT FROM OLD.audit_time)
    EXECUTE FUNCTION billing.ask_for_audit();

ALTER TABLE billing.ledger
    ADD COLUMN step smallint NOT NULL DEFAULT 0 CHECK (step BETWEEN 0 AND 127),
    -- A repair that takes tokens back: the range counts negative, and so does the cost.
    ADD COLUMN is_credit boolean NOT NULL DEFAULT false,
    DROP CONSTRAINT ledger_cost_nanousd_check,
    DROP CONSTRAINT ledger_source_check,
    ADD CONSTRAINT ledger_source_check CHECK (source IN ('node', 'gateway', 'repair')),
    ADD CONSTRAINT ledger_cost_check CHECK (
        CASE WHEN is_credit THEN source = 'repair' AND cost_nanousd <= 0 ELSE cost_nanousd >= 0 END
    );
DROP INDEX billing.ledger_once;
CREATE UNIQUE INDEX ledger_once ON billing.ledger
    (turn_id, step, choice_index, (kind = 3), first_position) WHERE source = 'node';

-- A credit may be written in a later month than the charge it takes back.
ALTER TABLE billing.balances DROP CONSTRAINT balances_spent_nanousd_check;

-- What the audit found, as it was when the turn was checked last.
CREATE TABLE billing.audit_findings (
    turn_id text NOT NULL,
    step smallint NOT NULL,
    finding smallint NOT NULL CHECK (finding BETWEEN 1 AND 6),  -- billing.v1.AuditFinding
    kind smallint NOT NULL CHECK (kind IN (1, 3)),  -- billing.v1.UsageKind: prompt or output
    account_id text NOT NULL,
    token_count bigint NOT NULL CHECK (token_count > 0),
    find_time timestamptz NOT NULL,
    PRIMARY KEY (turn_id, step, finding, kind)
);

-- Up to which entry the ledger was searched for entries that came after their turn was checked, or
-- that have no turn. One row.
CREATE TABLE billing.audit_progress (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    entry_id bigint NOT NULL
);
INSERT INTO billing.audit_progress (entry_id) VALUES (0);

GRANT SELECT, INSERT, DELETE ON billing.audit_findings TO chatmesh_billing;
GRANT SELECT, UPDATE ON billing.audit_progress TO chatmesh_billing;

-- Tables of the meter. Money is in nano-US-dollars (1e-9 USD). Times come from the caller's clock,
-- as arguments, so that the same statements run under a test's clock.

CREATE SCHEMA billing;

CREATE TABLE billing.accounts (
    account_id text PRIMARY KEY,
    name text NOT NULL CHECK (length(name) <= 200),
    tier smallint NOT NULL CHECK (tier BETWEEN 1 AND 4),
    -- The verified JWT subject it belongs to; NULL: made by the operator.
    issuer text,
    subject text,
    request_id text UNIQUE,
    create_time timestamptz NOT NULL,
    close_time timestamptz,
    UNIQUE (issuer, subject),
    CHECK ((issuer IS NULL) = (subject IS NULL))
);

-- The one hot row of an account; half of a page stays free so that updates stay in the page.
-- Invariants: reserved = sum of its turns' reserved; spent = its ledger's sum over `period`.
CREATE TABLE billing.balances (
    account_id text PRIMARY KEY REFERENCES billing.accounts,
    monthly_budget_nanousd bigint NOT NULL CHECK (monthly_budget_nanousd >= -1),  -- -1: no limit
    budget_is_default boolean NOT NULL,  -- a default follows the tier, a set one stays
    reserved_nanousd bigint NOT NULL DEFAULT 0 CHECK (reserved_nanousd >= 0),
    period date NOT NULL,  -- first day of the month (UTC) that `spent` counts
    spent_nanousd bigint NOT NULL DEFAULT 0 CHECK (spent_nanousd >= 0)
) WITH (fillfactor = 50);

CREATE TABLE billing.keys (
    key_id text PRIMARY KEY,
    account_id text NOT NULL REFERENCES billing.accounts,
    digest bytea NOT NULL UNIQUE CHECK (length(digest) = 32),  -- SHA-256; the secret is nowhere
    prefix text NOT NULL,
    scopes text[] NOT NULL CHECK (cardinality(scopes) > 0),
    name text NOT NULL CHECK (length(name) <= 200),
    request_id text UNIQUE,
    create_time timestamptz NOT NULL,
    expire_time timestamptz,
    revoke_time timestamptz
);
CREATE INDEX keys_of_account ON billing.keys (account_id, key_id);

-- A turn: its hold, its settlement, and which positions the ledger has.
CREATE TABLE billing.turns (
    turn_id text PRIMARY KEY,
    account_id text NOT NULL,
    model text NOT NULL,
    -- The prices that were promised when the hold was made.
    price_version text NOT NULL,
    input_nanousd bigint NOT NULL,
    cached_input_nanousd bigint NOT NULL,
    output_nanousd bigint NOT NULL,
    state smallint NOT NULL,  -- 1 open, 2 settled, 3 closed, 4 released, 5 expired
    amount_nanousd bigint NOT NULL CHECK (amount_nanousd >= 0),
    reserved_nanousd bigint NOT NULL CHECK (reserved_nanousd >= 0),
    ledger_nanousd bigint NOT NULL DEFAULT 0,
    create_time timestamptz NOT NULL,
    expire_time timestamptz NOT NULL,
    settle_time timestamptz,
    settled_prompt_count bigint,
    settled_cached_count bigint,
    settled_output_count bigint,
    settled_withheld_count bigint,
    covered_input int4multirange NOT NULL DEFAULT '{}',
    -- Of all answers: a position of answer c stands here as c * 2^32 + position.
    covered_output int8multirange NOT NULL DEFAULT '{}',
    -- Output tokens that were billed from the gateway's count and no node has reported yet.
    output_credit bigint NOT NULL DEFAULT 0 CHECK (output_credit >= 0),
    ledger_period date  -- the last month with an entry of this turn
);
CREATE INDEX turns_open ON billing.turns (expire_time) WHERE state = 1;
CREATE INDEX turns_settled ON billing.turns (settle_time) WHERE state = 2;

CREATE TABLE billing.ledger (
    entry_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id text NOT NULL,
    turn_id text NOT NULL,
    choice_index smallint NOT NULL,
    kind smallint NOT NULL CHECK (kind BETWEEN 1 AND 3),  -- billing.v1.UsageKind
    first_position integer NOT NULL CHECK (first_position >= 0),
    end_position integer NOT NULL CHECK (end_position > first_position),
    model text NOT NULL,
    cost_nanousd bigint NOT NULL CHECK (cost_nanousd >= 0),
    price_version text NOT NULL,
    create_time timestamptz NOT NULL,
    source text NOT NULL CHECK (source IN ('node', 'gateway'))
);
CREATE INDEX ledger_of_account ON billing.ledger (account_id, entry_id);
-- What a node reported is billed once; the coverage of the turn decides, this makes sure of it.
CREATE UNIQUE INDEX ledger_once ON billing.ledger
    (turn_id, choice_index, (kind = 3), first_position) WHERE source = 'node';
CREATE INDEX ledger_of_turn ON billing.ledger (turn_id);

CREATE FUNCTION billing.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only: write a correcting entry instead'
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE ON billing.ledger
    FOR EACH ROW EXECUTE FUNCTION billing.refuse_change();
CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON billing.ledger
    FOR EACH STATEMENT EXECUTE FUNCTION billing.refuse_change();

-- Sums of the ledger, written in the same transaction as its entries.
CREATE TABLE billing.usage_totals (
    account_id text NOT NULL,
    period date NOT NULL,
    model text NOT NULL,
    input_token_count bigint NOT NULL,  -- cached ones included
    cached_input_token_count bigint NOT NULL,
    output_token_count bigint NOT NULL,
    cost_nanousd bigint NOT NULL,
    turn_count bigint NOT NULL,
    PRIMARY KEY (account_id, period, model)
);

-- Usage events that came before the hold of their turn.
CREATE TABLE billing.pending_events (
    event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    turn_id text NOT NULL,
    event bytea NOT NULL,  -- a serialised billing.v1.UsageEvent
    arrive_time timestamptz NOT NULL
);
CREATE INDEX pending_of_turn ON billing.pending_events (turn_id);

CREATE FUNCTION billing.month_of(p_time timestamptz) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT date_trunc('month', p_time AT TIME ZONE 'UTC')::date
$$;

-- What may still be reserved; -1: no limit. An overdrawn budget has 0.
CREATE FUNCTION billing.available(p_balance billing.balances, p_now timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_balance.monthly_budget_nanousd = -1 THEN -1
        ELSE greatest(0, p_balance.monthly_budget_nanousd - p_balance.reserved_nanousd
            - CASE WHEN p_balance.period >= billing.month_of(p_now)
                   THEN p_balance.spent_nanousd ELSE 0 END)
        END
$$;

-- Reserves p_amount if the budget has room; gives what is left (-1: no limit), NULL: no room or no
-- account. One conditional update: parallel callers queue on the row and each sees the others'.
CREATE FUNCTION billing.reserve(p_account text, p_amount bigint, p_now timestamptz) RETURNS bigint
LANGUAGE sql AS $$
    UPDATE billing.balances AS balance
    SET reserved_nanousd = reserved_nanousd + p_amount
    WHERE account_id = p_account
        AND (p_amount = 0 OR monthly_budget_nanousd = -1
             OR billing.available(balance, p_now) >= p_amount)
    RETURNING billing.available(balance, p_now)
$$;

-- Gives back what the expired holds of one account reserve. Turns that somebody else is changing
-- are left to the sweeper: waiting for them, with the balance locked, could deadlock. p_except is
-- the turn that the caller itself is changing.
CREATE FUNCTION billing.expire_holds(p_account text, p_except text, p_now timestamptz)
RETURNS bigint
LANGUAGE sql AS $$
    WITH expired AS (
        SELECT turn_id, reserved_nanousd FROM billing.turns
        WHERE state = 1 AND expire_time <= p_now AND account_id = p_account
            AND turn_id <> p_except
        FOR UPDATE SKIP LOCKED
    ), changed AS (
        UPDATE billing.turns SET state = 5, reserved_nanousd = 0
        WHERE turn_id IN (SELECT turn_id FROM expired)
    ), freed AS (
        SELECT coalesce(sum(reserved_nanousd), 0)::bigint AS amount FROM expired
    )
    UPDATE billing.balances SET reserved_nanousd = reserved_nanousd - freed.amount
    FROM freed WHERE account_id = p_account
    RETURNING freed.amount
$$;

-- Hold, in one round trip. outcome: 'held' (now or before), 'exhausted', 'no_account', or
-- 'other_account' (the turn id is another account's).
CREATE FUNCTION billing.hold(
    p_turn text, p_account text, p_model text, p_price_version text,
    p_input bigint, p_cached_input bigint, p_output bigint,
    p_amount bigint, p_now timestamptz, p_expire_time timestamptz,
    OUT outcome text, OUT held bigint, OUT available bigint, OUT expire_time timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
    turn billing.turns;
    again boolean;
BEGIN
    SELECT * INTO turn FROM billing.turns AS t WHERE t.turn_id = p_turn;
    again := FOUND;
    IF again AND turn.account_id <> p_account THEN
        outcome := 'other_account';
        RETURN;
    END IF;
    IF again AND turn.state = 5 THEN
        -- It expired meanwhile; asked again, it is reserved again, at the promised price.
        SELECT * INTO turn FROM billing.turns AS t WHERE t.turn_id = p_turn FOR UPDATE;
    END IF;
    IF again AND turn.state <> 5 THEN
        SELECT billing.available(b, p_now) INTO available
        FROM billing.balances AS b WHERE b.account_id = p_account;
        outcome := 'held';
        held := turn.amount_nanousd;
        expire_time := turn.expire_time;
        RETURN;
    END IF;

    -- A hold must be quick and lives for minutes: it does not wait for the disk (0.3 ms instead of
    -- 0.4 to 10). A crash of PostgreSQL can lose the holds of its last 0.6 s, never a ledger entry;
    -- Settle then answers HOLD_NOT_FOUND, and the gateway repeats Hold and Settle.
    PERFORM set_config('synchronous_commit', 'off', true);
    -- Exactly what the turn's row will say; less what the ledger has of it already.
    held := CASE WHEN again THEN greatest(0, turn.amount_nanousd - turn.ledger_nanousd)
                 ELSE p_amount END;
    expire_time := p_expire_time;
    available := billing.reserve(p_account, held, p_now);
    IF available IS NULL THEN
        PERFORM billing.expire_holds(p_account, p_turn, p_now);
        available := billing.reserve(p_account, held, p_now);
    END IF;
    IF available IS NULL THEN
        SELECT 'exhausted', billing.available(b, p_now) INTO outcome, available
        FROM billing.balances AS b WHERE b.account_id = p_account;
        outcome := coalesce(outcome, 'no_account');
        RETURN;
    END IF;

    outcome := 'held';
    IF again THEN
        UPDATE billing.turns AS t
        SET state = 1, reserved_nanousd = held, expire_time = p_expire_time
        WHERE t.turn_id = p_turn;
        held := turn.amount_nanousd;
        RETURN;
    END IF;
    INSERT INTO billing.turns (
        turn_id, account_id, model, price_version, input_nanousd, cached_input_nanousd,
        output_nanousd, state, amount_nanousd, reserved_nanousd, create_time, expire_time
    ) VALUES (
        p_turn, p_account, p_model, p_price_version, p_input, p_cached_input,
        p_output, 1, p_amount, p_amount, p_now, p_expire_time
    ) ON CONFLICT (turn_id) DO NOTHING;
    IF NOT FOUND THEN
        -- The same call, repeated, won the race: give this one's reservation back.
        UPDATE billing.balances AS b SET reserved_nanousd = b.reserved_nanousd - held
        WHERE b.account_id = p_account
        RETURNING billing.available(b, p_now) INTO available;
        SELECT CASE WHEN t.account_id = p_account THEN 'held' ELSE 'other_account' END,
               t.amount_nanousd, t.expire_time
        INTO outcome, held, expire_time
        FROM billing.turns AS t WHERE t.turn_id = p_turn;
    END IF;
END $$;

GRANT USAGE ON SCHEMA billing TO chatmesh_billing;
GRANT SELECT, INSERT, UPDATE ON billing.accounts, billing.balances, billing.keys,
    billing.usage_totals TO chatmesh_billing;
GRANT SELECT, INSERT, UPDATE, DELETE ON billing.turns TO chatmesh_billing;
GRANT SELECT, INSERT, DELETE ON billing.pending_events TO chatmesh_billing;
GRANT SELECT, INSERT ON billing.ledger TO chatmesh_billing;

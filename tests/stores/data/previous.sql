-- Made by make.py, in a checkout of the version before; not written by hand.
-- billing/001_billing.sql
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

-- billing/002_jurisdiction.sql
-- The country whose rules hold for an account (ISO 3166-1 alpha-2); empty: the default ones.

ALTER TABLE billing.accounts
    ADD COLUMN jurisdiction text NOT NULL DEFAULT '' CHECK (jurisdiction ~ '^([A-Z]{2})?$');

-- conversation/001_conversation.sql
-- Threads and their messages, each account's its own.
--
-- Row-level security is forced on every table: even the owner sees the rows of one account only,
-- the one that the running transaction named by set_config('chatmesh.account_id', …, true). A
-- transaction that named none sees nothing: account ids are never empty.

CREATE SCHEMA conversation;

CREATE TABLE conversation.thread (
    account_id text NOT NULL CHECK (account_id <> ''),
    id text NOT NULL,
    title text NOT NULL,
    model text NOT NULL,
    create_time timestamptz NOT NULL,
    update_time timestamptz NOT NULL,
    -- When it was deleted; purged later.
    delete_time timestamptz,
    total_token_count bigint NOT NULL CHECK (total_token_count >= 0),
    -- Also the position of the newest message: grows by one a message, never shrinks.
    message_count integer NOT NULL CHECK (message_count >= 0),
    -- The account comes first, so that two accounts may name a thread alike and never learn of it.
    PRIMARY KEY (account_id, id)
);
CREATE INDEX thread_by_use ON conversation.thread (account_id, update_time DESC, id DESC)
    WHERE delete_time IS NULL;
CREATE INDEX thread_by_deletion ON conversation.thread (delete_time)
    WHERE delete_time IS NOT NULL;

CREATE TABLE conversation.message (
    account_id text NOT NULL,
    thread_id text NOT NULL,
    -- 1, 2, 3, … without gaps.
    position integer NOT NULL CHECK (position > 0),
    id text NOT NULL,
    -- As in the contract: 1 system, 2 user, 3 assistant, 4 tool.
    role smallint NOT NULL CHECK (role BETWEEN 1 AND 4),
    -- U+0000, which PostgreSQL's text cannot hold, is escaped by the service.
    content text NOT NULL,
    token_count bigint NOT NULL CHECK (token_count >= 0),
    turn_id text NOT NULL,
    create_time timestamptz NOT NULL,
    finish_reason text NOT NULL,
    model text NOT NULL,
    PRIMARY KEY (account_id, thread_id, position),
    FOREIGN KEY (account_id, thread_id) REFERENCES conversation.thread ON DELETE CASCADE
);
CREATE INDEX message_of_system ON conversation.message (account_id, thread_id, position)
    WHERE role = 1;

-- What was answered to which write, so that a repeated one changes nothing.
CREATE TABLE conversation.request (
    account_id text NOT NULL CHECK (account_id <> ''),
    method text NOT NULL,
    request_id text NOT NULL,
    -- SHA-256 of what was asked.
    content_digest bytea NOT NULL,
    -- Serialised chatmesh.conversation.v1.Thread as it was answered; null while at work.
    answer bytea,
    -- Position of the first message that the request added; null when it added none.
    first_position integer,
    create_time timestamptz NOT NULL,
    PRIMARY KEY (account_id, method, request_id)
);
CREATE INDEX request_by_time ON conversation.request (create_time);

ALTER TABLE conversation.thread ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE conversation.message ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE conversation.request ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

CREATE POLICY own_account ON conversation.thread
    USING (account_id = current_setting('chatmesh.account_id', true));
CREATE POLICY own_account ON conversation.message
    USING (account_id = current_setting('chatmesh.account_id', true));
CREATE POLICY own_account ON conversation.request
    USING (account_id = current_setting('chatmesh.account_id', true));

-- The purge runs as the owner and reaches, of all accounts, what is deleted and nothing else.
CREATE POLICY purge_finds ON conversation.thread FOR SELECT TO CURRENT_USER
    USING (delete_time IS NOT NULL);
CREATE POLICY purge_removes ON conversation.thread FOR DELETE TO CURRENT_USER
    USING (delete_time IS NOT NULL);
CREATE POLICY purge_finds ON conversation.request FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY purge_removes ON conversation.request FOR DELETE TO CURRENT_USER USING (true);

-- Reads are functions, so that naming the account and reading are one round trip.

CREATE FUNCTION conversation.get_thread(p_account text, p_thread text)
RETURNS SETOF conversation.thread LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    PERFORM set_config('chatmesh.account_id', p_account, true);
    RETURN QUERY
    SELECT t.* FROM conversation.thread t
    WHERE t.account_id = p_account AND t.id = p_thread AND t.delete_time IS NULL;
END $$;

-- A page of threads behind the given place (null: from the start), the most recently used first.
CREATE FUNCTION conversation.list_threads(
    p_account text, p_behind_time timestamptz, p_behind_id text, p_limit integer
)
RETURNS SETOF conversation.thread LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    PERFORM set_config('chatmesh.account_id', p_account, true);
    RETURN QUERY
    SELECT t.* FROM conversation.thread t
    WHERE t.account_id = p_account AND t.delete_time IS NULL
        AND (t.update_time, t.id)
            < (coalesce(p_behind_time, 'infinity'), coalesce(p_behind_id, ''))
    ORDER BY t.update_time DESC, t.id DESC
    LIMIT p_limit;
END $$;

-- Messages of a thread that is not deleted, oldest first, up to a size; at least one if any.
CREATE FUNCTION conversation.list_messages(
    p_account text, p_thread text, p_behind integer, p_limit integer, p_byte_max bigint
)
RETURNS SETOF conversation.message LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    PERFORM set_config('chatmesh.account_id', p_account, true);
    RETURN QUERY
    SELECT m.* FROM conversation.message m
    JOIN (
        SELECT s.position, octet_length(s.content) AS size,
            sum(octet_length(s.content)) OVER (ORDER BY s.position) AS total
        FROM conversation.message s
        WHERE s.account_id = p_account AND s.thread_id = p_thread AND s.position > p_behind
        ORDER BY s.position
        LIMIT p_limit
    ) page ON page.position = m.position
    WHERE m.account_id = p_account AND m.thread_id = p_thread
        AND (page.total <= p_byte_max OR page.total = page.size)
        AND EXISTS (
            SELECT FROM conversation.thread t
            WHERE t.account_id = p_account AND t.id = p_thread AND t.delete_time IS NULL
        )
    ORDER BY m.position;
END $$;

-- The system messages and the newest others of the first p_message_count messages, oldest first.
CREATE FUNCTION conversation.read_tail(
    p_account text, p_thread text, p_message_count integer, p_limit integer, p_byte_max bigint
)
RETURNS SETOF conversation.message LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    PERFORM set_config('chatmesh.account_id', p_account, true);
    RETURN QUERY
    SELECT m.* FROM conversation.message m
    JOIN (
        SELECT s.position, octet_length(s.content) AS size,
            sum(octet_length(s.content)) OVER (ORDER BY s.position DESC) AS total
        FROM conversation.message s
        WHERE s.account_id = p_account AND s.thread_id = p_thread
            AND s.position <= p_message_count AND s.role <> 1
        ORDER BY s.position DESC
        LIMIT p_limit
    ) newest ON newest.position = m.position
    WHERE m.account_id = p_account AND m.thread_id = p_thread
        AND (newest.total <= p_byte_max OR newest.total = newest.size)
    UNION ALL
    SELECT m.* FROM conversation.message m
    WHERE m.account_id = p_account AND m.thread_id = p_thread
        AND m.position <= p_message_count AND m.role = 1
    ORDER BY position;
END $$;

-- Removes at most p_limit threads that were deleted before the given time, with their messages.
CREATE FUNCTION conversation.purge_threads(p_deleted_before timestamptz, p_limit integer)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    removed integer;
BEGIN
    DELETE FROM conversation.thread t
    USING (
        SELECT d.account_id, d.id FROM conversation.thread d
        WHERE d.delete_time < p_deleted_before
        ORDER BY d.delete_time
        LIMIT p_limit
    ) gone
    WHERE t.account_id = gone.account_id AND t.id = gone.id AND t.delete_time < p_deleted_before;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;

-- Forgets at most p_limit answers of requests that were made before the given time.
CREATE FUNCTION conversation.purge_requests(p_made_before timestamptz, p_limit integer)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    removed integer;
BEGIN
    DELETE FROM conversation.request r
    USING (
        SELECT o.account_id, o.method, o.request_id FROM conversation.request o
        WHERE o.create_time < p_made_before
        ORDER BY o.create_time
        LIMIT p_limit
    ) old
    WHERE r.account_id = old.account_id AND r.method = old.method
        AND r.request_id = old.request_id;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA conversation FROM PUBLIC;
GRANT USAGE ON SCHEMA conversation TO chatmesh_conversation;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA conversation TO chatmesh_conversation;
-- Messages never change, and nothing is removed but by the purge.
GRANT SELECT, INSERT ON conversation.thread, conversation.message, conversation.request
    TO chatmesh_conversation;
GRANT UPDATE (title, model, update_time, delete_time, total_token_count, message_count)
    ON conversation.thread TO chatmesh_conversation;
GRANT UPDATE (answer, first_position) ON conversation.request TO chatmesh_conversation;

-- safety/001_safety.sql
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

-- safety/002_decisions.sql
-- What a decision rests on beside the policy, and how the judged text ended. All may be NULL: rows
-- of a service that knows none of them stay valid.

ALTER TABLE safety.decisions
    ADD COLUMN IF NOT EXISTS ended text             -- how the text ended
        CHECK (ended IN ('complete', 'halted', 'left', 'failed')),
    ADD COLUMN IF NOT EXISTS shadow_action text     -- of the rules in the shadow, if there are any
        CHECK (shadow_action IN ('allow', 'flag', 'redact', 'safe_complete', 'block')),
    ADD COLUMN IF NOT EXISTS shadow_category text,
    ADD COLUMN IF NOT EXISTS backend text,          -- which classifier took part; empty: rules only
    ADD COLUMN IF NOT EXISTS backend_digest text,   -- of its weights
    ADD COLUMN IF NOT EXISTS backend_failed boolean, -- it gave no answer, and the policy went on
    ADD COLUMN IF NOT EXISTS mask_count bigint,     -- spans that were masked
    ADD COLUMN IF NOT EXISTS quotation text;        -- the end of the text, where the policy says so

CREATE TABLE IF NOT EXISTS public.schema_migrations (
    service text NOT NULL,
    number integer NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    apply_time timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (service, number)
);
INSERT INTO billing.accounts (account_id, name, tier, issuer, subject, request_id, create_time, close_time, jurisdiction) OVERRIDING SYSTEM VALUE VALUES ('acc_01M81QTKF4Q7G06WNM9WZZN6YW', 'Zoë 🙂', '3', NULL, NULL, 'first', '2026-11-21 12:00:00+00', NULL, 'DE');
INSERT INTO billing.accounts (account_id, name, tier, issuer, subject, request_id, create_time, close_time, jurisdiction) OVERRIDING SYSTEM VALUE VALUES ('acc_01M81QTKFPV0VQ6C08QQD3B3QH', 'mia', '2', 'https://id', 'mia', NULL, '2026-11-21 12:00:00+00', NULL, '');
SELECT set_config('chatmesh.account_id', 'acc_one', false);
INSERT INTO conversation.thread (account_id, id, title, model, create_time, update_time, delete_time, total_token_count, message_count) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', 'Étude', 'small', '2026-11-21 12:00:00+00', '2026-11-21 12:00:00+00', NULL, '39', '10');
INSERT INTO conversation.thread (account_id, id, title, model, create_time, update_time, delete_time, total_token_count, message_count) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBX', 'Question 0?', 'small', '2026-11-21 12:00:00+00', '2026-11-21 12:00:00+00', '2026-11-21 12:00:00+00', '11', '3');
INSERT INTO conversation.thread (account_id, id, title, model, create_time, update_time, delete_time, total_token_count, message_count) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDCG', 'New', '', '2026-11-21 12:00:00+00', '2026-11-21 12:00:00+00', NULL, '0', '0');
SELECT set_config('chatmesh.account_id', 'acc_two', false);
INSERT INTO conversation.thread (account_id, id, title, model, create_time, update_time, delete_time, total_token_count, message_count) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', 'Étude', 'small', '2026-11-21 12:00:00+00', '2026-11-21 12:00:00+00', NULL, '39', '10');
INSERT INTO conversation.thread (account_id, id, title, model, create_time, update_time, delete_time, total_token_count, message_count) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCK', 'Question 0?', 'small', '2026-11-21 12:00:00+00', '2026-11-21 12:00:00+00', '2026-11-21 12:00:00+00', '11', '3');
INSERT INTO conversation.thread (account_id, id, title, model, create_time, update_time, delete_time, total_token_count, message_count) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDD6', 'New', '', '2026-11-21 12:00:00+00', '2026-11-21 12:00:00+00', NULL, '0', '0');
INSERT INTO billing.balances (account_id, monthly_budget_nanousd, budget_is_default, reserved_nanousd, period, spent_nanousd) OVERRIDING SYSTEM VALUE VALUES ('acc_01M81QTKF4Q7G06WNM9WZZN6YW', '1000000000000', 'true', '1340', '2026-11-01', '1060');
INSERT INTO billing.balances (account_id, monthly_budget_nanousd, budget_is_default, reserved_nanousd, period, spent_nanousd) OVERRIDING SYSTEM VALUE VALUES ('acc_01M81QTKFPV0VQ6C08QQD3B3QH', '20000000000', 'true', '480', '2026-11-01', '0');
INSERT INTO billing.keys (key_id, account_id, digest, prefix, scopes, name, request_id, create_time, expire_time, revoke_time) OVERRIDING SYSTEM VALUE VALUES ('key_01M81QTKFT1KZZ395BQMJKN63W', 'acc_01M81QTKF4Q7G06WNM9WZZN6YW', E'\\x516c120be9dcfd48f2faa6af1f9447097391148938a1dd7da468a1897da7e556', 'cm-KJYC', '{chat,conversations,usage}', 'a key', 'key', '2026-11-21 12:00:00+00', NULL, NULL);
INSERT INTO billing.ledger (entry_id, account_id, turn_id, choice_index, kind, first_position, end_position, model, cost_nanousd, price_version, create_time, source) OVERRIDING SYSTEM VALUE VALUES ('1', 'acc_01M81QTKF4Q7G06WNM9WZZN6YW', '01M81QTKGJY4EZ7Y6GG613X596', '0', '1', '0', '8', 'small', '160', 'test-1', '2026-11-21 12:00:00+00', 'node');
INSERT INTO billing.ledger (entry_id, account_id, turn_id, choice_index, kind, first_position, end_position, model, cost_nanousd, price_version, create_time, source) OVERRIDING SYSTEM VALUE VALUES ('2', 'acc_01M81QTKF4Q7G06WNM9WZZN6YW', '01M81QTKGJY4EZ7Y6GG613X596', '0', '3', '0', '12', 'small', '720', 'test-1', '2026-11-21 12:00:00+00', 'node');
INSERT INTO billing.ledger (entry_id, account_id, turn_id, choice_index, kind, first_position, end_position, model, cost_nanousd, price_version, create_time, source) OVERRIDING SYSTEM VALUE VALUES ('3', 'acc_01M81QTKF4Q7G06WNM9WZZN6YW', '01M81QTKGJY4EZ7Y6GG613X596', '1', '3', '0', '3', 'small', '180', 'test-1', '2026-11-21 12:00:00+00', 'node');
SELECT setval(pg_get_serial_sequence('billing.ledger', 'entry_id'), 3);
INSERT INTO billing.turns (turn_id, account_id, model, price_version, input_nanousd, cached_input_nanousd, output_nanousd, state, amount_nanousd, reserved_nanousd, ledger_nanousd, create_time, expire_time, settle_time, settled_prompt_count, settled_cached_count, settled_output_count, settled_withheld_count, covered_input, covered_output, output_credit, ledger_period) OVERRIDING SYSTEM VALUE VALUES ('01M81QTKFW2902NABH9G14NXAR', 'acc_01M81QTKF4Q7G06WNM9WZZN6YW', 'small', 'test-1', '20', '5', '60', '2', '1340', '1340', '0', '2026-11-21 12:00:00+00', '2026-11-21 12:02:00+00', '2026-11-21 12:00:00+00', '10', '4', '20', '0', '{}', '{}', '0', NULL);
INSERT INTO billing.turns (turn_id, account_id, model, price_version, input_nanousd, cached_input_nanousd, output_nanousd, state, amount_nanousd, reserved_nanousd, ledger_nanousd, create_time, expire_time, settle_time, settled_prompt_count, settled_cached_count, settled_output_count, settled_withheld_count, covered_input, covered_output, output_credit, ledger_period) OVERRIDING SYSTEM VALUE VALUES ('01M81QTKGJY4EZ7Y6GG613X596', 'acc_01M81QTKF4Q7G06WNM9WZZN6YW', 'small', 'test-1', '20', '5', '60', '3', '1060', '0', '1060', '2026-11-21 12:00:00+00', '2026-11-21 12:02:00+00', '2026-11-21 12:00:00+00', '8', '0', '15', '0', '{[0,8)}', '{[0,12),[4294967296,4294967299)}', '0', '2026-11-01');
INSERT INTO billing.turns (turn_id, account_id, model, price_version, input_nanousd, cached_input_nanousd, output_nanousd, state, amount_nanousd, reserved_nanousd, ledger_nanousd, create_time, expire_time, settle_time, settled_prompt_count, settled_cached_count, settled_output_count, settled_withheld_count, covered_input, covered_output, output_credit, ledger_period) OVERRIDING SYSTEM VALUE VALUES ('01M81QTKGVY89MF2NYBAJT9BHJ', 'acc_01M81QTKFPV0VQ6C08QQD3B3QH', 'small', 'test-1', '20', '5', '60', '4', '6200', '0', '0', '2026-11-21 12:00:00+00', '2026-11-21 12:02:00+00', NULL, NULL, NULL, NULL, NULL, '{}', '{}', '0', NULL);
INSERT INTO billing.turns (turn_id, account_id, model, price_version, input_nanousd, cached_input_nanousd, output_nanousd, state, amount_nanousd, reserved_nanousd, ledger_nanousd, create_time, expire_time, settle_time, settled_prompt_count, settled_cached_count, settled_output_count, settled_withheld_count, covered_input, covered_output, output_credit, ledger_period) OVERRIDING SYSTEM VALUE VALUES ('01M81QTKGZ709CJZ0KGEBZXY4C', 'acc_01M81QTKFPV0VQ6C08QQD3B3QH', 'small', 'test-1', '20', '5', '60', '1', '480', '480', '0', '2026-11-21 12:00:00+00', '2026-11-21 12:02:00+00', NULL, NULL, NULL, NULL, NULL, '{}', '{}', '0', NULL);
INSERT INTO billing.usage_totals (account_id, period, model, input_token_count, cached_input_token_count, output_token_count, cost_nanousd, turn_count) OVERRIDING SYSTEM VALUE VALUES ('acc_01M81QTKF4Q7G06WNM9WZZN6YW', '2026-11-01', 'small', '8', '0', '15', '1060', '1');
SELECT set_config('chatmesh.account_id', 'acc_one', false);
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '1', 'msg_01M7YZMHG0R8X09653F5T0HDC3', '1', 'Be kind.', '2', '01M7YZMHG0R8X09653F5T0HDBY', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '2', 'msg_01M7YZMHG0R8X09653F5T0HDC4', '2', 'Question 0? 10', '4', '01M7YZMHG0R8X09653F5T0HDBY', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '3', 'msg_01M7YZMHG0R8X09653F5T0HDC5', '3', 'Answer 0 🙂', '5', '01M7YZMHG0R8X09653F5T0HDBY', '2026-11-21 12:00:00+00', 'stop', 'small');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '4', 'msg_01M7YZMHG0R8X09653F5T0HDC6', '2', 'Question 1? 10', '4', '01M7YZMHG0R8X09653F5T0HDBZ', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '5', 'msg_01M7YZMHG0R8X09653F5T0HDC7', '4', '42', '1', '01M7YZMHG0R8X09653F5T0HDBZ', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '6', 'msg_01M7YZMHG0R8X09653F5T0HDC8', '3', 'Answer 1 🙂', '5', '01M7YZMHG0R8X09653F5T0HDBZ', '2026-11-21 12:00:00+00', 'length', 'small');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '7', 'msg_01M7YZMHG0R8X09653F5T0HDC9', '2', 'Question 2? 10', '4', '01M7YZMHG0R8X09653F5T0HDC0', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '8', 'msg_01M7YZMHG0R8X09653F5T0HDCA', '3', 'Answer 2 🙂', '5', '01M7YZMHG0R8X09653F5T0HDC0', '2026-11-21 12:00:00+00', 'content_filter', 'small');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '9', 'msg_01M7YZMHG0R8X09653F5T0HDCB', '2', 'Question 3? 10', '4', '01M7YZMHG0R8X09653F5T0HDC1', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBW', '10', 'msg_01M7YZMHG0R8X09653F5T0HDCC', '3', 'Answer 3 🙂', '5', '01M7YZMHG0R8X09653F5T0HDC1', '2026-11-21 12:00:00+00', 'cancelled', 'small');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBX', '1', 'msg_01M7YZMHG0R8X09653F5T0HDCD', '1', 'Be kind.', '2', '01M7YZMHG0R8X09653F5T0HDC2', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBX', '2', 'msg_01M7YZMHG0R8X09653F5T0HDCE', '2', 'Question 0? 10', '4', '01M7YZMHG0R8X09653F5T0HDC2', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'thr_01M7YZMHG0R8X09653F5T0HDBX', '3', 'msg_01M7YZMHG0R8X09653F5T0HDCF', '3', 'Answer 0 🙂', '5', '01M7YZMHG0R8X09653F5T0HDC2', '2026-11-21 12:00:00+00', 'stop', 'small');
SELECT set_config('chatmesh.account_id', 'acc_two', false);
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '1', 'msg_01M7YZMHG0R8X09653F5T0HDCS', '1', 'Be kind.', '2', '01M7YZMHG0R8X09653F5T0HDCM', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '2', 'msg_01M7YZMHG0R8X09653F5T0HDCT', '2', 'Question 0? 10', '4', '01M7YZMHG0R8X09653F5T0HDCM', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '3', 'msg_01M7YZMHG0R8X09653F5T0HDCV', '3', 'Answer 0 🙂', '5', '01M7YZMHG0R8X09653F5T0HDCM', '2026-11-21 12:00:00+00', 'stop', 'small');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '4', 'msg_01M7YZMHG0R8X09653F5T0HDCW', '2', 'Question 1? 10', '4', '01M7YZMHG0R8X09653F5T0HDCN', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '5', 'msg_01M7YZMHG0R8X09653F5T0HDCX', '4', '42', '1', '01M7YZMHG0R8X09653F5T0HDCN', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '6', 'msg_01M7YZMHG0R8X09653F5T0HDCY', '3', 'Answer 1 🙂', '5', '01M7YZMHG0R8X09653F5T0HDCN', '2026-11-21 12:00:00+00', 'length', 'small');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '7', 'msg_01M7YZMHG0R8X09653F5T0HDCZ', '2', 'Question 2? 10', '4', '01M7YZMHG0R8X09653F5T0HDCP', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '8', 'msg_01M7YZMHG0R8X09653F5T0HDD0', '3', 'Answer 2 🙂', '5', '01M7YZMHG0R8X09653F5T0HDCP', '2026-11-21 12:00:00+00', 'content_filter', 'small');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '9', 'msg_01M7YZMHG0R8X09653F5T0HDD1', '2', 'Question 3? 10', '4', '01M7YZMHG0R8X09653F5T0HDCQ', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCJ', '10', 'msg_01M7YZMHG0R8X09653F5T0HDD2', '3', 'Answer 3 🙂', '5', '01M7YZMHG0R8X09653F5T0HDCQ', '2026-11-21 12:00:00+00', 'cancelled', 'small');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCK', '1', 'msg_01M7YZMHG0R8X09653F5T0HDD3', '1', 'Be kind.', '2', '01M7YZMHG0R8X09653F5T0HDCR', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCK', '2', 'msg_01M7YZMHG0R8X09653F5T0HDD4', '2', 'Question 0? 10', '4', '01M7YZMHG0R8X09653F5T0HDCR', '2026-11-21 12:00:00+00', '', '');
INSERT INTO conversation.message (account_id, thread_id, position, id, role, content, token_count, turn_id, create_time, finish_reason, model) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'thr_01M7YZMHG0R8X09653F5T0HDCK', '3', 'msg_01M7YZMHG0R8X09653F5T0HDD5', '3', 'Answer 0 🙂', '5', '01M7YZMHG0R8X09653F5T0HDCR', '2026-11-21 12:00:00+00', 'stop', 'small');
SELECT set_config('chatmesh.account_id', 'acc_one', false);
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'append', '01M7YZMHG0R8X09653F5T0HDBY', E'\\xd5bb99af37bf08e97c592c307bc66c4b99af588598ca8916f995001cdd5f5f55', E'\\x0a1e7468725f30314d37595a4d48473052385830393635334635543048444257120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d806300b3803', '1', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'append', '01M7YZMHG0R8X09653F5T0HDBZ', E'\\x46ecf81c0223351a0bd448a21303b3216b11acf2007cab3c8367804a65625f32', E'\\x0a1e7468725f30314d37595a4d48473052385830393635334635543048444257120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d80630153806', '4', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'append', '01M7YZMHG0R8X09653F5T0HDC0', E'\\x748b0cebabb4ecef926caeba664e4e867240f6369a5e726abd7b6cbe40171671', E'\\x0a1e7468725f30314d37595a4d48473052385830393635334635543048444257120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d806301e3808', '7', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'append', '01M7YZMHG0R8X09653F5T0HDC1', E'\\xae1862cbbef5aaa2a7bbe531ff3dee4a2544caa1a07f04588e9e24f09597e3a8', E'\\x0a1e7468725f30314d37595a4d48473052385830393635334635543048444257120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d8063027380a', '9', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'append', '01M7YZMHG0R8X09653F5T0HDC2', E'\\x1bc1ba73ec37458ad5d602aaf45c77f48fc2279679c63065ac672109acd3821a', E'\\x0a1e7468725f30314d37595a4d48473052385830393635334635543048444258120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d806300b3803', '1', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'rename', 'rename', E'\\x46db91e4344c91fff44f497c5fa6c1eff9094ed532efd35b00862f510bada59b', E'\\x0a1e7468725f30314d37595a4d484730523858303936353346355430484442571206c389747564651a05736d616c6c220608c08f86d8062a0608c08f86d8063027380a', NULL, '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'delete', 'delete', E'\\xf1aa82b9d562d22939ba75958aa8541eb1d90cb8cb42dfb2bc598d063861df1b', E'\\x0a1e7468725f30314d37595a4d48473052385830393635334635543048444258120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d806300b3803', NULL, '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_one', 'create', 'create', E'\\xe13e29f1f8399b77542f39daa7bf7b7732eeb0d7298e5dff3774e7f23e74944e', E'\\x0a1e7468725f30314d37595a4d4847305238583039363533463554304844434712034e6577220608c08f86d8062a0608c08f86d806', NULL, '2026-11-21 12:00:00+00');
SELECT set_config('chatmesh.account_id', 'acc_two', false);
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'append', '01M7YZMHG0R8X09653F5T0HDCM', E'\\x51920d9e9159ea3f78661df1aeb90efab71481ccdfff3557e597bde817694244', E'\\x0a1e7468725f30314d37595a4d4847305238583039363533463554304844434a120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d806300b3803', '1', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'append', '01M7YZMHG0R8X09653F5T0HDCN', E'\\xb5718aac3b8080e1dd15bfab08a6655a53b1bb5540991ba86c6c77dd20f6b788', E'\\x0a1e7468725f30314d37595a4d4847305238583039363533463554304844434a120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d80630153806', '4', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'append', '01M7YZMHG0R8X09653F5T0HDCP', E'\\xa7263145531e7b1527fe947538433ca83499a034eaef4ec4a0c6fe3d480a6e8d', E'\\x0a1e7468725f30314d37595a4d4847305238583039363533463554304844434a120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d806301e3808', '7', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'append', '01M7YZMHG0R8X09653F5T0HDCQ', E'\\xceafd4b68f92efd47e3774509095599581870f9e27097e29e894fb4ac1195976', E'\\x0a1e7468725f30314d37595a4d4847305238583039363533463554304844434a120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d8063027380a', '9', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'append', '01M7YZMHG0R8X09653F5T0HDCR', E'\\xc71603a0b4aa1abb697d91d3b0bc644428f05f872d19174ab7881812b4f638e6', E'\\x0a1e7468725f30314d37595a4d4847305238583039363533463554304844434b120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d806300b3803', '1', '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'rename', 'rename', E'\\xe667541ec2d55ea250333220edcf572150faa0d168a844db2d363f5af2d56e52', E'\\x0a1e7468725f30314d37595a4d4847305238583039363533463554304844434a1206c389747564651a05736d616c6c220608c08f86d8062a0608c08f86d8063027380a', NULL, '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'delete', 'delete', E'\\x75a569c3f917d7e4d0c8ca581eb4d726d6c379df867944aaf18b5474f1959e06', E'\\x0a1e7468725f30314d37595a4d4847305238583039363533463554304844434b120b5175657374696f6e20303f1a05736d616c6c220608c08f86d8062a0608c08f86d806300b3803', NULL, '2026-11-21 12:00:00+00');
INSERT INTO conversation.request (account_id, method, request_id, content_digest, answer, first_position, create_time) OVERRIDING SYSTEM VALUE VALUES ('acc_two', 'create', 'create', E'\\xe13e29f1f8399b77542f39daa7bf7b7732eeb0d7298e5dff3774e7f23e74944e', E'\\x0a1e7468725f30314d37595a4d4847305238583039363533463554304844443612034e6577220608c08f86d8062a0608c08f86d806', NULL, '2026-11-21 12:00:00+00');
INSERT INTO public.schema_migrations (service, number, name, digest, apply_time) OVERRIDING SYSTEM VALUE VALUES ('billing', '1', '001_billing.sql', '383653856f08a0c2baf9749f8e6f287a3baaeafffb24fc4aa2a3cfdfad560f4a', '2026-11-22 13:41:13.272576+00');
INSERT INTO public.schema_migrations (service, number, name, digest, apply_time) OVERRIDING SYSTEM VALUE VALUES ('billing', '2', '002_jurisdiction.sql', 'edbf5b5610b6456a8ac36c5b9752bf4fdbf49d141f6eaca2ffde50dc640afc1f', '2026-11-22 13:41:13.290011+00');
INSERT INTO public.schema_migrations (service, number, name, digest, apply_time) OVERRIDING SYSTEM VALUE VALUES ('conversation', '1', '001_conversation.sql', 'fc5e816748a693dfb33f3bd609395b3b37b55858dd39135b4cfee93ca9e7dc78', '2026-11-22 13:41:13.29185+00');
INSERT INTO public.schema_migrations (service, number, name, digest, apply_time) OVERRIDING SYSTEM VALUE VALUES ('safety', '1', '001_safety.sql', '2f6ed69a7d6f9a57717fe1e5140c1c008448480e7cf48de14a0cde1a43e99ef2', '2026-11-22 13:41:13.300001+00');
INSERT INTO public.schema_migrations (service, number, name, digest, apply_time) OVERRIDING SYSTEM VALUE VALUES ('safety', '2', '002_decisions.sql', '7d3414a23c51bdc0ac20fcd2559f1324b67db9a327663ef745d4c63ced4f035e', '2026-11-22 13:41:13.302951+00');

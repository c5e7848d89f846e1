-- Limits that bind: money, tokens a minute and turns at once, of accounts, keys and organisations.
--
-- Who pays for a turn: its account; its key, when that has limits of its own; the account's
-- organisation. Each has a row of billing.balances, and each must have room. Processes of the
-- version before cannot go on beside this: the balances' key has another name.

CREATE TABLE billing.organisations (
    organisation_id text PRIMARY KEY,
    name text NOT NULL CHECK (length(name) <= 200),
    request_id text UNIQUE,
    create_time timestamptz NOT NULL
);

ALTER TABLE billing.accounts
    ADD COLUMN role smallint NOT NULL DEFAULT 0 CHECK (role BETWEEN 0 AND 2);  -- billing.v1.Role

ALTER TABLE billing.balances RENAME COLUMN account_id TO payer_id;
ALTER TABLE billing.balances DROP CONSTRAINT balances_account_id_fkey;
ALTER TABLE billing.balances
    -- Of an account: the organisation that pays with it.
    ADD COLUMN organisation_id text REFERENCES billing.organisations,
    ADD COLUMN tokens_per_minute bigint NOT NULL DEFAULT -1 CHECK (tokens_per_minute >= -1),
    ADD COLUMN parallel_max integer NOT NULL DEFAULT -1 CHECK (parallel_max >= -1),
    -- Defaults follow the tier, as that of the budget does.
    ADD COLUMN limits_are_default boolean NOT NULL DEFAULT true,
    -- Its open turns.
    ADD COLUMN running integer NOT NULL DEFAULT 0 CHECK (running >= 0),
    -- Which minute since the epoch minute_token_count is of.
    ADD COLUMN minute bigint NOT NULL DEFAULT 0,
    ADD COLUMN minute_token_count bigint NOT NULL DEFAULT 0 CHECK (minute_token_count >= 0);
CREATE INDEX balances_of_organisation ON billing.balances (organisation_id)
    WHERE organisation_id IS NOT NULL;
UPDATE billing.balances SET running = open.count
FROM (SELECT account_id, count(*) FROM billing.turns WHERE state = 1 GROUP BY account_id) AS open
WHERE payer_id = open.account_id;

ALTER TABLE billing.turns
    ADD COLUMN key_id text NOT NULL DEFAULT '',
    -- Who pays beside the account, as it was at the hold.
    ADD COLUMN other_payers text[] NOT NULL DEFAULT '{}',
    ADD COLUMN held_prompt_count bigint NOT NULL DEFAULT 0,
    ADD COLUMN held_output_count bigint NOT NULL DEFAULT 0,
    -- What was reserved last of a minute's tokens, and of which minute.
    ADD COLUMN minute bigint NOT NULL DEFAULT 0,
    ADD COLUMN minute_token_count bigint NOT NULL DEFAULT 0,
    -- Settled, and its node may yet report more than the gateway saw.
    ADD COLUMN is_cut_short boolean NOT NULL DEFAULT false;
-- What runs while this is applied: its amount, as if all of it were output.
UPDATE billing.turns SET held_output_count = amount_nanousd / output_nanousd
WHERE state = 1 AND output_nanousd > 0;

ALTER TABLE billing.ledger ADD COLUMN key_id text NOT NULL DEFAULT '';
ALTER TABLE billing.usage_totals ADD COLUMN key_id text NOT NULL DEFAULT '';
ALTER TABLE billing.usage_totals DROP CONSTRAINT usage_totals_pkey;
ALTER TABLE billing.usage_totals ADD PRIMARY KEY (account_id, period, model, key_id);

DROP FUNCTION billing.hold(
    text, text, text, text, bigint, bigint, bigint, bigint, timestamptz, timestamptz);
DROP FUNCTION billing.reserve(text, bigint, timestamptz);
DROP FUNCTION billing.expire_holds(text, text, timestamptz);

CREATE FUNCTION billing.minute_of(p_time timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT floor(extract(epoch FROM p_time) / 60)::bigint
$$;

-- Reserves p_fixed and p_fixed_tokens, and of p_max tokens at p_unit each as many as all payers have
-- room for, at least p_min; and a turn for each of p_turns. granted: how many tokens of the p_max;
-- NULL: none of it, for want of room. bound, bound_payer: why not all (content.v1.Limit), whose.
-- available: least money left of a limited budget; -1: none is limited. token_limit, token_left: of
-- the payer with the fewest tokens left; NULL: none is limited.
--
-- The rows are locked in the order of the payers, which is that of their ids: acc_, key_, org_.
CREATE FUNCTION billing.reserve(
    p_payers text[], p_fixed bigint, p_fixed_tokens bigint, p_unit bigint, p_min bigint,
    p_max bigint, p_turns integer, p_now timestamptz,
    OUT granted bigint, OUT bound smallint, OUT bound_payer text, OUT available bigint,
    OUT token_limit bigint, OUT token_left bigint
) LANGUAGE plpgsql AS $$
DECLARE
    payer text;
    balance billing.balances;
    free bigint;
    room bigint;
    this_minute bigint := billing.minute_of(p_now);
BEGIN
    granted := p_max;
    available := -1;
    FOREACH payer IN ARRAY p_payers LOOP
        SELECT * INTO STRICT balance FROM billing.balances WHERE payer_id = payer FOR UPDATE;
        IF balance.parallel_max >= 0 AND p_turns > 0
            AND balance.running + p_turns > balance.parallel_max AND granted IS NOT NULL
        THEN
            granted := NULL;
            bound := 3;
            bound_payer := payer;
            token_limit := balance.parallel_max;
            RETURN;
        END IF;
        IF balance.tokens_per_minute >= 0 AND (p_fixed_tokens > 0 OR p_max > 0) THEN
            free := balance.tokens_per_minute - CASE WHEN balance.minute >= this_minute
                THEN balance.minute_token_count ELSE 0 END;
            room := free - p_fixed_tokens;
            IF token_left IS NULL OR free < token_left THEN
                token_limit := balance.tokens_per_minute;
                token_left := free;
            END IF;
            IF room < granted THEN
                granted := room;
                bound := 2;
                bound_payer := payer;
            END IF;
        END IF;
        free := billing.available(balance, p_now);
        IF free >= 0 THEN
            available := CASE WHEN available < 0 THEN free ELSE least(available, free) END;
            room := CASE WHEN free < p_fixed THEN -1 WHEN p_unit = 0 THEN p_max
                ELSE (free - p_fixed) / p_unit END;
            IF room < granted THEN
                granted := room;
                bound := 1;
                bound_payer := payer;
            END IF;
        END IF;
    END LOOP;
    IF granted < p_min THEN
        granted := NULL;
        RETURN;
    END IF;
    FOREACH payer IN ARRAY p_payers LOOP
        UPDATE billing.balances SET
            reserved_nanousd = reserved_nanousd + p_fixed + granted * p_unit,
            running = running + p_turns,
            minute_token_count = CASE WHEN minute >= this_minute THEN minute_token_count ELSE 0 END
                + p_fixed_tokens + granted,
            minute = greatest(minute, this_minute)
        WHERE payer_id = payer;
    END LOOP;
    IF available >= 0 THEN
        available := available - p_fixed - granted * p_unit;
    END IF;
    token_left := greatest(0, token_left - p_fixed_tokens - granted);
END $$;

-- Gives back what the account's expired holds reserve, of payers whose balances the caller has locked.
-- Turns that somebody else is changing, and those with other payers, are left to the sweeper: waiting
-- for them, with balances locked, could deadlock. p_except is the turn that the caller is changing.
CREATE FUNCTION billing.expire_holds(p_payers text[], p_except text, p_now timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    expired record;
BEGIN
    FOR expired IN
        SELECT turn_id, account_id || other_payers AS payers, reserved_nanousd FROM billing.turns
        WHERE state = 1 AND expire_time <= p_now AND account_id = p_payers[1]
            AND other_payers <@ p_payers AND turn_id <> p_except
        FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE billing.turns SET state = 5, reserved_nanousd = 0 WHERE turn_id = expired.turn_id;
        UPDATE billing.balances SET
            reserved_nanousd = reserved_nanousd - expired.reserved_nanousd,
            running = running - 1
        WHERE payer_id = ANY (expired.payers);
    END LOOP;
END $$;

-- Hold, in one round trip. outcome: 'held' (now or before), 'refused' (bound says why),
-- 'no_account', or 'other_account' (the turn id is another account's).
CREATE FUNCTION billing.hold(
    p_turn text, p_account text, p_key text, p_model text, p_price_version text,
    p_input bigint, p_cached_input bigint, p_output bigint,
    p_prompt_count bigint, p_output_min bigint, p_output_max bigint,
    p_now timestamptz, p_expire_time timestamptz,
    OUT outcome text, OUT held bigint, OUT granted bigint, OUT bound smallint,
    OUT bound_payer text, OUT available bigint, OUT token_limit bigint, OUT token_left bigint,
    OUT expire_time timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
    turn billing.turns;
    again boolean;
    payers text[];
    got record;
    is_second boolean := false;
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
        FROM billing.balances AS b WHERE b.payer_id = p_account;
        outcome := 'held';
        held := turn.amount_nanousd;
        granted := turn.held_output_count;
        expire_time := turn.expire_time;
        RETURN;
    END IF;

    -- A hold must be quick and lives for minutes: it does not wait for the disk (0.3 ms instead of
    -- 0.4 to 10). A crash of PostgreSQL can lose the holds of its last 0.6 s, never a ledger entry;
    -- Settle then answers HOLD_NOT_FOUND, and the gateway repeats Hold and Settle.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF again THEN
        payers := p_account || turn.other_payers;
    ELSE
        SELECT array_remove(ARRAY[b.payer_id, k.payer_id, b.organisation_id], NULL) INTO payers
        FROM billing.balances AS b LEFT JOIN billing.balances AS k ON k.payer_id = p_key
        WHERE b.payer_id = p_account;
        IF NOT FOUND THEN
            outcome := 'no_account';
            RETURN;
        END IF;
    END IF;
    expire_time := p_expire_time;
    LOOP
        IF again THEN
            -- Exactly what the turn's row will say; less what the ledger has of it already.
            held := greatest(0, turn.amount_nanousd - turn.ledger_nanousd);
            SELECT * INTO got FROM billing.reserve(payers, held, 0, 0, 0, 0, 1, p_now);
            granted := turn.held_output_count;
        ELSE
            SELECT * INTO got FROM billing.reserve(payers, p_input * p_prompt_count,
                p_prompt_count, p_output, p_output_min, p_output_max, 1, p_now);
            granted := got.granted;
            held := p_input * p_prompt_count + p_output * granted;
        END IF;
        EXIT WHEN got.granted IS NOT NULL OR is_second;
        is_second := true;
        PERFORM billing.expire_holds(payers, p_turn, p_now);
    END LOOP;
    bound := got.bound;
    bound_payer := got.bound_payer;
    available := got.available;
    token_limit := got.token_limit;
    token_left := got.token_left;
    IF got.granted IS NULL THEN
        outcome := 'refused';
        held := CASE WHEN again THEN held ELSE p_input * p_prompt_count + p_output * p_output_max END;
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
        output_nanousd, state, amount_nanousd, reserved_nanousd, create_time, expire_time,
        key_id, other_payers, held_prompt_count, held_output_count, minute, minute_token_count
    ) VALUES (
        p_turn, p_account, p_model, p_price_version, p_input, p_cached_input,
        p_output, 1, held, held, p_now, p_expire_time,
        p_key, payers[2:], p_prompt_count, granted, billing.minute_of(p_now),
        p_prompt_count + granted
    ) ON CONFLICT (turn_id) DO NOTHING;
    IF NOT FOUND THEN
        -- The same call, repeated, won the race: this one reserved nothing.
        UPDATE billing.balances AS b SET
            reserved_nanousd = b.reserved_nanousd - held,
            running = b.running - 1,
            minute_token_count = b.minute_token_count - p_prompt_count - granted
        WHERE b.payer_id = ANY (payers);
        SELECT CASE WHEN t.account_id = p_account THEN 'held' ELSE 'other_account' END,
               t.amount_nanousd, t.held_output_count, t.expire_time
        INTO outcome, held, granted, expire_time
        FROM billing.turns AS t WHERE t.turn_id = p_turn;
    END IF;
END $$;

GRANT SELECT, INSERT ON billing.organisations TO chatmesh_billing;

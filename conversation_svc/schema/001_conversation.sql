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

-- What a message is made of beside its text: the tool calls of an assistant, or whose result a tool's
-- message is. Serialised content.v1.Message with nothing but `parts`; empty: text only, as all rows
-- of the version before. That version goes on with the functions that it knows.

ALTER TABLE conversation.message ADD COLUMN parts bytea NOT NULL DEFAULT '';

-- As before, with parts.
CREATE FUNCTION conversation.finish_append(
    p_account text, p_request text, p_answer bytea,
    p_thread text, p_title text, p_model text, p_update_time timestamptz,
    p_total_token_count bigint, p_message_count integer, p_first_position integer,
    p_contents text[], p_ids text[], p_roles smallint[], p_token_counts bigint[],
    p_turn_ids text[], p_create_times timestamptz[], p_finish_reasons text[], p_models text[],
    p_parts bytea[]
) RETURNS void LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    PERFORM set_config('chatmesh.account_id', p_account, true);
    INSERT INTO conversation.message (account_id, thread_id, position, content, id, role,
        token_count, turn_id, create_time, finish_reason, model, parts)
    SELECT p_account, p_thread, p_first_position + m.number - 1, m.content, m.id, m.role,
        m.token_count, m.turn_id, m.create_time, m.finish_reason, m.model, m.parts
    FROM unnest(p_contents, p_ids, p_roles, p_token_counts, p_turn_ids, p_create_times,
        p_finish_reasons, p_models, p_parts) WITH ORDINALITY AS m (content, id, role, token_count,
        turn_id, create_time, finish_reason, model, parts, number);
    UPDATE conversation.thread t
    SET title = p_title, model = p_model, update_time = p_update_time,
        total_token_count = p_total_token_count, message_count = p_message_count
    WHERE t.account_id = p_account AND t.id = p_thread;
    UPDATE conversation.request r SET answer = p_answer, first_position = p_first_position
    WHERE r.account_id = p_account AND r.method = 'append' AND r.request_id = p_request;
END $$;

-- As before; parts count to the size.
CREATE OR REPLACE FUNCTION conversation.list_messages(
    p_account text, p_thread text, p_behind integer, p_limit integer, p_byte_max bigint
)
RETURNS SETOF conversation.message LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    PERFORM set_config('chatmesh.account_id', p_account, true);
    RETURN QUERY
    SELECT m.* FROM conversation.message m
    JOIN (
        SELECT s.position, octet_length(s.content) + octet_length(s.parts) AS size,
            sum(octet_length(s.content) + octet_length(s.parts)) OVER (ORDER BY s.position) AS total
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

-- As before; parts count to the size.
CREATE OR REPLACE FUNCTION conversation.read_tail(
    p_account text, p_thread text, p_message_count integer, p_limit integer, p_byte_max bigint
)
RETURNS SETOF conversation.message LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    PERFORM set_config('chatmesh.account_id', p_account, true);
    RETURN QUERY
    SELECT m.* FROM conversation.message m
    JOIN (
        SELECT s.position, octet_length(s.content) + octet_length(s.parts) AS size,
            sum(octet_length(s.content) + octet_length(s.parts))
                OVER (ORDER BY s.position DESC) AS total
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

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA conversation FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA conversation TO chatmesh_conversation;

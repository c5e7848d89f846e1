-- The id of a thread's newest message names its state: counts and times repeat where a failover lost
-- an append and other messages took its place, ids never do. Empty: nothing was added since this
-- file was applied. Both forms of finish_append write it, so that the version before does too.

ALTER TABLE conversation.thread ADD COLUMN last_message_id text NOT NULL DEFAULT '';
GRANT UPDATE (last_message_id) ON conversation.thread TO chatmesh_conversation;

-- As before, with the newest message's id.
CREATE OR REPLACE FUNCTION conversation.finish_append(
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
        total_token_count = p_total_token_count, message_count = p_message_count,
        last_message_id = p_ids[cardinality(p_ids)]
    WHERE t.account_id = p_account AND t.id = p_thread;
    UPDATE conversation.request r SET answer = p_answer, first_position = p_first_position
    WHERE r.account_id = p_account AND r.method = 'append' AND r.request_id = p_request;
END $$;

-- The form of the version before 004: without parts.
CREATE OR REPLACE FUNCTION conversation.finish_append(
    p_account text, p_request text, p_answer bytea,
    p_thread text, p_title text, p_model text, p_update_time timestamptz,
    p_total_token_count bigint, p_message_count integer, p_first_position integer,
    p_contents text[], p_ids text[], p_roles smallint[], p_token_counts bigint[],
    p_turn_ids text[], p_create_times timestamptz[], p_finish_reasons text[], p_models text[]
) RETURNS void LANGUAGE sql SECURITY INVOKER AS $$
    SELECT conversation.finish_append(p_account, p_request, p_answer, p_thread, p_title, p_model,
        p_update_time, p_total_token_count, p_message_count, p_first_position, p_contents, p_ids,
        p_roles, p_token_counts, p_turn_ids, p_create_times, p_finish_reasons, p_models,
        array_fill(''::bytea, ARRAY[cardinality(p_ids)]))
$$;

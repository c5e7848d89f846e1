-- An append in two steps, so that a group of appends by many accounts takes two round trips: each
-- step names its account itself, as the reads do. What is added to a thread is decided in between,
-- by the service.

-- Takes the request id and locks the thread. outcome: 'new'; 'done' (before, or by this
-- transaction); 'reused' (the id was used for something else); 'missing' (no such thread, or it was
-- deleted). Only 'new' changes anything.
CREATE FUNCTION conversation.begin_append(
    p_account text, p_request text, p_digest bytea, p_now timestamptz,
    p_thread text, p_model text, p_create boolean,
    OUT outcome text, OUT thread conversation.thread
) LANGUAGE plpgsql SECURITY INVOKER AS $$
DECLARE
    used_digest bytea;
BEGIN
    PERFORM set_config('chatmesh.account_id', p_account, true);
    SELECT r.content_digest INTO used_digest FROM conversation.request r
    WHERE r.account_id = p_account AND r.method = 'append' AND r.request_id = p_request;
    IF NOT FOUND THEN
        IF p_create THEN
            INSERT INTO conversation.thread
                (account_id, id, title, model, create_time, update_time, total_token_count,
                 message_count)
            VALUES (p_account, p_thread, '', p_model, p_now, p_now, 0, 0)
            ON CONFLICT DO NOTHING;
        END IF;
        SELECT * INTO thread FROM conversation.thread t
        WHERE t.account_id = p_account AND t.id = p_thread AND t.delete_time IS NULL
        FOR UPDATE;
        IF NOT FOUND THEN
            outcome := 'missing';
            RETURN;
        END IF;
        INSERT INTO conversation.request
            (account_id, method, request_id, content_digest, create_time)
        VALUES (p_account, 'append', p_request, p_digest, p_now)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            outcome := 'new';
            RETURN;
        END IF;
        -- The same id, used at the same time, was written while this one waited for the thread.
        SELECT r.content_digest INTO used_digest FROM conversation.request r
        WHERE r.account_id = p_account AND r.method = 'append' AND r.request_id = p_request;
        IF used_digest <> p_digest THEN
            -- It may have made a thread: undone with the transaction. Repeated, it is 'reused'.
            RAISE EXCEPTION 'request % was used at the same time', p_request
                USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    outcome := CASE WHEN used_digest = p_digest THEN 'done' ELSE 'reused' END;
END $$;

-- Adds the messages, one an element of each array, and writes the thread and the answer of the
-- request that begin_append took.
CREATE FUNCTION conversation.finish_append(
    p_account text, p_request text, p_answer bytea,
    p_thread text, p_title text, p_model text, p_update_time timestamptz,
    p_total_token_count bigint, p_message_count integer, p_first_position integer,
    p_contents text[], p_ids text[], p_roles smallint[], p_token_counts bigint[],
    p_turn_ids text[], p_create_times timestamptz[], p_finish_reasons text[], p_models text[]
) RETURNS void LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    PERFORM set_config('chatmesh.account_id', p_account, true);
    INSERT INTO conversation.message (account_id, thread_id, position, content, id, role,
        token_count, turn_id, create_time, finish_reason, model)
    SELECT p_account, p_thread, p_first_position + m.number - 1, m.content, m.id, m.role,
        m.token_count, m.turn_id, m.create_time, m.finish_reason, m.model
    FROM unnest(p_contents, p_ids, p_roles, p_token_counts, p_turn_ids, p_create_times,
        p_finish_reasons, p_models) WITH ORDINALITY AS m (content, id, role, token_count, turn_id,
        create_time, finish_reason, model, number);
    UPDATE conversation.thread t
    SET title = p_title, model = p_model, update_time = p_update_time,
        total_token_count = p_total_token_count, message_count = p_message_count
    WHERE t.account_id = p_account AND t.id = p_thread;
    UPDATE conversation.request r SET answer = p_answer, first_position = p_first_position
    WHERE r.account_id = p_account AND r.method = 'append' AND r.request_id = p_request;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA conversation FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA conversation TO chatmesh_conversation;

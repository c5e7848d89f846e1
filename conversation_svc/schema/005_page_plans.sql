-- A page is found by joining a thread's messages with the sizes of some of them. Where the planner
-- knows nothing of the table yet (a new database, or one that grew before it was analysed) it took
-- the join of a few rows for granted and compared each with each: 1,000 messages took over 3 s, the
-- deadline of the call. Without nested loops the join is linear, whatever is known.
ALTER FUNCTION conversation.list_messages(text, text, integer, integer, bigint)
    SET enable_nestloop = off;
ALTER FUNCTION conversation.read_tail(text, text, integer, integer, bigint)
    SET enable_nestloop = off;

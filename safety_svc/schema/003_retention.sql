-- Decisions are kept for a time that a setting says (SAFETY_DECISION_RETENTION_DAYS). The service's
-- role still cannot delete: this function can, and only what is older than any policy may ask for,
-- so that a service that was taken over does not remove its traces.

CREATE INDEX IF NOT EXISTS decisions_by_time ON safety.decisions (decided_at);

CREATE OR REPLACE FUNCTION safety.purge_decisions(p_before timestamptz, p_limit int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_count bigint;
BEGIN
    IF p_before > now() - interval '30 days' THEN
        RAISE insufficient_privilege USING MESSAGE = 'decisions of the last 30 days are kept';
    END IF;
    DELETE FROM safety.decisions WHERE audit_id IN (
        SELECT audit_id FROM safety.decisions
        WHERE decided_at < p_before
        ORDER BY decided_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$$;

REVOKE ALL ON FUNCTION safety.purge_decisions(timestamptz, int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION safety.purge_decisions(timestamptz, int) TO chatmesh_safety;

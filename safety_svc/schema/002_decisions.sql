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

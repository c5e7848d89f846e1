-- The country whose rules hold for an account (ISO 3166-1 alpha-2); empty: the default ones.

ALTER TABLE billing.accounts
    ADD COLUMN jurisdiction text NOT NULL DEFAULT '' CHECK (jurisdiction ~ '^([A-Z]{2})?$');

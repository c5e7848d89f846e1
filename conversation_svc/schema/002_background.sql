-- Whether the turns of a thread run to their end although nobody reads, as its owner set it. Rows of
-- the version before say no; that version reads and writes the table as it did.

ALTER TABLE conversation.thread ADD COLUMN background boolean NOT NULL DEFAULT false;
GRANT UPDATE (background) ON conversation.thread TO chatmesh_conversation;

"""What the ORM cannot say: keys over two columns, cascades done by Postgres, and the view that defines the queue."""

from django.db import migrations

KEYS = """
ALTER TABLE conversations_message
  ADD CONSTRAINT message_of_conversation FOREIGN KEY (conversation_id)
    REFERENCES conversations_conversation ON DELETE CASCADE,
  ADD CONSTRAINT message_parent_in_conversation FOREIGN KEY (parent_id, conversation_id)
    REFERENCES conversations_message (id, conversation_id) ON DELETE CASCADE;
ALTER TABLE conversations_conversation
  ADD CONSTRAINT conversation_leaf_in_conversation FOREIGN KEY (leaf_id, id)
    REFERENCES conversations_message (id, conversation_id) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE conversations_generation
  ADD CONSTRAINT generation_of_conversation FOREIGN KEY (conversation_id)
    REFERENCES conversations_conversation ON DELETE CASCADE,
  ADD CONSTRAINT generation_message_in_conversation FOREIGN KEY (message_id, conversation_id)
    REFERENCES conversations_message (id, conversation_id) ON DELETE CASCADE;
ALTER TABLE conversations_chunk
  ADD CONSTRAINT chunk_of_generation FOREIGN KEY (generation_id)
    REFERENCES conversations_generation ON DELETE CASCADE;
"""

DROP_KEYS = """
ALTER TABLE conversations_chunk DROP CONSTRAINT chunk_of_generation;
ALTER TABLE conversations_generation
  DROP CONSTRAINT generation_message_in_conversation, DROP CONSTRAINT generation_of_conversation;
ALTER TABLE conversations_conversation DROP CONSTRAINT conversation_leaf_in_conversation;
ALTER TABLE conversations_message
  DROP CONSTRAINT message_parent_in_conversation, DROP CONSTRAINT message_of_conversation;
"""

QUEUE = """
CREATE VIEW conversations_queue AS
SELECT g.id, g.conversation_id, g.owner_id, g.model,
       row_number() OVER (ORDER BY g.attempt > 0 DESC, g.queued_at, g.id)::integer AS place
FROM conversations_generation g
WHERE g.status = 'queued'
"""


class Migration(migrations.Migration):
    dependencies = [("conversations", "0001_initial")]

    operations = [
        migrations.RunSQL(KEYS, DROP_KEYS),
        migrations.RunSQL(QUEUE, "DROP VIEW conversations_queue"),
    ]

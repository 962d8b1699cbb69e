"""What the checkpoint of a Spark query says of its batches and of how far it has read."""

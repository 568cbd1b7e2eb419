"""A collection as the producer of a buffer: epoch after epoch, and no group before there is room
for it."""

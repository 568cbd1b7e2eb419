"""Files of rollouts that other programs wrote: each is read through a copy in our format, so that
no reader of rollouts needs to know another."""

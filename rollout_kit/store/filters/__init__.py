"""What a filter such as `reward < 0.5` means, for one rollout and for whole columns of an index."""

"""Forward: one batched pass over all the scheduled rows, reading and writing paged KV."""

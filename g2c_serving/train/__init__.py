"""Train: the corpus generator, the tokenizer's learner, the trainer, and what the models can do."""

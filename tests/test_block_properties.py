"""Any sequence of operations on blocks, against a naive model that keeps plain lists of tokens.

The pages are a list of lists here. After every operation each sequence, read through its table, is
the list of tokens that the naive model has for it, and every named block holds what its name says.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from g2c_serving.schedule.block_hash import hash_chain
from g2c_serving.schedule.block_manager import BlockManager

BLOCK_SIZE, NUM_BLOCKS = 3, 7
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)  # few kinds: prefixes are shared


class Blocks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.pages = [[None] * BLOCK_SIZE for _ in range(NUM_BLOCKS)]
        self.naive: dict[int, list[int]] = {}
        self.meaning: dict[bytes, list[int]] = {}  # of every name ever given
        self.next_id = 0

    def prepare(self) -> None:
        """What the engine does before a forward."""
        self.manager.prepare(self)

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        copied = [(list(self.pages[source]), to) for source, to in pairs]
        for content, to in copied:
            self.pages[to] = content

    def clear(self, blocks: list[int]) -> None:
        for block in blocks:
            self.pages[block] = [None] * BLOCK_SIZE

    def write(self, sequence_id: int, first: int) -> None:
        """Compute the tokens from `first` on, then name the blocks that are full."""
        self.prepare()
        tokens, table = self.naive[sequence_id], self.manager.tables[sequence_id]
        for i in range(first, len(tokens)):
            self.pages[table[i // BLOCK_SIZE]][i % BLOCK_SIZE] = tokens[i]
        names = hash_chain(tokens, BLOCK_SIZE, "", "m")
        done = first // BLOCK_SIZE
        self.manager.publish(sequence_id, done, names[done:])
        for i, name in enumerate(names):
            self.meaning[name] = tokens[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]

    def start(self, sequence_id: int, tokens: list[int]) -> None:
        names = hash_chain(tokens, BLOCK_SIZE, "", "m")[: (len(tokens) - 1) // BLOCK_SIZE]
        shared = self.manager.match(names)
        needed = self.manager.blocks_for(len(tokens)) - len(shared)
        if needed + self.manager.num_unused(shared) > self.manager.num_free:
            return
        self.manager.adopt(sequence_id, shared)
        self.manager.allocate(sequence_id, len(tokens))
        self.naive[sequence_id] = list(tokens)
        self.write(sequence_id, len(shared) * BLOCK_SIZE)

    @rule(tokens=TOKENS)
    def admit(self, tokens):
        self.next_id += 1
        self.start(self.next_id, tokens)

    @precondition(lambda self: self.naive)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data, token):
        one = data.draw(st.sampled_from(sorted(self.naive)))
        length = len(self.naive[one])
        if self.manager.can_allocate(one, length + 1, length):
            self.manager.allocate(one, length + 1, length)
            self.naive[one].append(token)
            self.write(one, length)

    @precondition(lambda self: self.naive)
    @rule(data=st.data(), whole=st.booleans())
    def fork(self, data, whole):
        one = data.draw(st.sampled_from(sorted(self.naive)))
        length = len(self.naive[one])
        kept = length if whole else data.draw(st.integers(1, length))
        self.next_id += 1
        self.manager.fork(one, self.next_id, kept)
        self.naive[self.next_id] = self.naive[one][:kept]

    @precondition(lambda self: self.naive)
    @rule(data=st.data())
    def finish_or_abort(self, data):
        one = data.draw(st.sampled_from(sorted(self.naive)))
        self.manager.free(one)
        del self.naive[one]

    @precondition(lambda self: self.naive)
    @rule(data=st.data())
    def preempt_and_return(self, data):
        one = data.draw(st.sampled_from(sorted(self.naive)))
        self.manager.free(one)
        self.start(one, self.naive.pop(one))

    @precondition(lambda self: self.naive)
    @rule(data=st.data())
    def preempt_and_park(self, data):
        one = data.draw(st.sampled_from(sorted(self.naive)))
        kept = self.manager.keep_shared(one) * BLOCK_SIZE
        self.naive[one] = self.naive[one][:kept]
        if not kept:
            self.manager.free(one)
            del self.naive[one]

    @precondition(lambda self: len(self.naive) > 1)
    @rule(data=st.data())
    def two_write_in_one_step(self, data):
        """The copies of a step are made together, after all of its allocations, one of which may
        have ended a sequence that another copy reads from."""
        one, other = data.draw(st.permutations(sorted(self.naive)))[:2]
        length = len(self.naive[one])
        if not self.manager.can_allocate(one, length + 1, length):
            return
        self.manager.allocate(one, length + 1, length)
        self.manager.free(other)
        del self.naive[other]
        self.naive[one].append(1)
        self.write(one, length)

    @invariant()
    def blocks_add_up(self):
        self.manager.check()

    @invariant()
    def every_sequence_reads_its_own_tokens(self):
        for sequence_id, tokens in self.naive.items():
            table = self.manager.tables[sequence_id]
            read = [token for block in table for token in self.pages[block]]
            assert read[: len(tokens)] == tokens

    @invariant()
    def every_name_tells_what_the_block_holds(self):
        for block, name in self.manager.hash_of.items():
            assert self.pages[block] == self.meaning[name]


Blocks.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBlocks = Blocks.TestCase

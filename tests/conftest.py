"""One thread for torch: the tensors of the tests are small, and two threads would wait for each
other more than they compute. And Ctrl+C as in a terminal, also where the tests run in the
background of a shell that ignores it: some of them raise it. Every engine is guarded: what would
wait for a device in its launches is an error."""

import os
import signal

import torch

os.environ["G2C_FORBID_SYNC"] = "1"
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)

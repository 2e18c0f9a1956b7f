"""One thread for torch: the tensors of the tests are small, and two threads would wait for each
other more than they compute."""

import torch

torch.set_num_threads(1)

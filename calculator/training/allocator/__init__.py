"""PyTorch's CUDA caching allocator as arithmetic: which bytes it reserves for a sequence of allocations.

Rules modelled, for one stream on one device: sizes round up to 512 B; requests up to 1 MiB live in a pool of 2 MiB
segments, larger ones in a pool whose segments are 20 MiB below 10 MiB and else the request rounded up to 2 MiB; a free
block is chosen by (size, address); the rest is split off where it is large enough and otherwise handed out with the
block; free neighbours of one segment merge; when the card refuses, cached segments go back and the request is tried
once more. With expandable segments a pool is one address range whose pages are mapped as it grows.

Nothing is allocated: addresses are numbers that only order the blocks. Sizes are bytes.

Source: PyTorch 2.14 ``c10/cuda/CUDACachingAllocator.cpp``, and "Memory management" in
https://pytorch.org/docs/stable/notes/cuda.html. Held against that code's own statistics by recorded sequences.
"""

from calculator.training.allocator.replay import AllocatorSettings, AllocatorStats, replay

__all__ = ["AllocatorSettings", "AllocatorStats", "replay"]

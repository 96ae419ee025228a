"""The Triton kernel that copies and pads; imported only when it is about to run, for importing Triton takes a while.

What it is given is laid out by ``fill_table``. Triton reads this file's source and annotations, so that they stay plain.
"""

import triton
import triton.language as tl


@triton.jit
def fill(
    table,
    owners,
    sources,
    num_sources: tl.constexpr,
    listed: tl.constexpr,
    columns: tl.constexpr,
    block_words: tl.constexpr,
    index_type: tl.constexpr,
):
    """Write one block of one destination: the source where there is one, the fill elsewhere.

    Args:
        table: two rows a job; the second is for a source that does not lie at a multiple of the first one's word.
        owners: for each block its job times 16, plus the bytes of the job's word less one.
        sources: the addresses of the sources: a tuple of ints, or a pointer to them where ``listed``.
        num_sources: how many there are; for what is listed it says nothing.
        listed: whether they lie in memory.
        columns: ints in a row of the table.
        block_words: words that a program writes at a time; a power of two.
        index_type: holds the number of a destination's words.
    """
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    job = owner >> 4
    if listed:
        source = tl.load(sources + job)
    else:
        source = sources[0].to(tl.int64)
        for place in tl.static_range(1, num_sources):
            source = tl.where(job == place, sources[place].to(tl.int64), source)
    misaligned = ((source & (owner & 15)) != 0).to(tl.int64)
    row = table + (2 * job + misaligned) * columns
    word = tl.load(row + 2)
    if word == 8:
        _move(row, source, block, tl.int64, block_words, index_type)
    elif word == 4:
        _move(row, source, block, tl.int32, block_words, index_type)
    elif word == 2:
        _move(row, source, block, tl.int16, block_words, index_type)
    else:
        _move(row, source, block, tl.int8, block_words, index_type)


@triton.jit
def _move(row, source, block, word_type: tl.constexpr, block_words: tl.constexpr, index_type: tl.constexpr):
    """Write one block in words of one type."""
    destination = tl.load(row + 1).to(tl.pointer_type(word_type))
    origin = source.to(tl.pointer_type(word_type))
    steps = tl.load(row + 3).to(tl.int32)
    num_words = tl.load(row + 4).to(index_type)
    num_dims = tl.load(row + 5).to(tl.int32)
    even, odd = tl.load(row + 6), tl.load(row + 7)
    first = (block - tl.load(row)) * steps * block_words
    step = 0
    while step < steps:  # a loop over range() needs Triton 3.7 in the interpreter where NumPy is 2.4 or newer
        index = (first + step * block_words).to(index_type) + tl.arange(0, block_words).to(index_type)
        inside = index < num_words
        copied = inside
        rest = index
        read = tl.zeros_like(index).to(tl.int64)
        write = read
        dim = row + 8
        outside = 1
        while outside < num_dims:
            size = tl.load(dim).to(index_type)
            coordinate = (rest % size).to(tl.int64)
            rest = rest // size
            copied = copied & (coordinate < tl.load(dim + 1))
            write = write + coordinate * tl.load(dim + 2)
            read = read + coordinate * tl.load(dim + 3)
            dim = dim + 4
            outside = outside + 1
        outer = rest.to(tl.int64)
        copied = copied & (outer < tl.load(dim + 1))
        write = write + outer * tl.load(dim + 2)
        read = read + outer * tl.load(dim + 3)
        padding = tl.where((index & 1) == 0, even, odd).to(word_type)
        words = tl.load(origin + read, mask=copied, other=padding)
        tl.store(destination + write, words, mask=inside)
        step = step + 1

"""The memory of trials: one block, which grows and is released."""

from __future__ import annotations

import gc
import weakref

from demitasse_tuning.scratch import KEPT


def test_one_block_serves_all_trials(bench, relu):
    tuner = bench.tuner()
    for count in (1000, 500, KEPT // 8, 2000):
        tuner.pick("fast", relu(count), [bench.kernel("a", 1), bench.kernel("b", 1)])
    assert (bench.allocator.allocations, bench.allocator.held) == (1, KEPT)


def test_with_little_room_the_block_grows_and_it_goes_with_the_tuner(bench, relu):
    bench.allocator.room = KEPT - 1
    tuner = bench.tuner()
    for count in (1000, 500, 4000, 2000):
        tuner.pick("fast", relu(count), [bench.kernel("a", 1), bench.kernel("b", 1, workspace=256)])
    assert bench.allocator.allocations == 2
    assert bench.allocator.held == bench.allocator.peak == 2 * 4000 * 4 + 256
    tuner.close()
    assert bench.allocator.held == 0
    assert tuner.pick("fast", relu(10), [bench.kernel("a", 1), bench.kernel("b", 1)])[0] == 0


def test_who_writes_memory_first_is_called_again(bench, relu):
    """The kernel was called in this process before, but its workspace is larger than any so far."""
    tuner = bench.tuner()
    tuner.pick("fast", relu(1000), [bench.kernel("a", 1), bench.kernel("b", 2)])
    slow, quick = bench.kernel("a", 3), bench.kernel("b", 40, 1, workspace=4096)
    assert tuner.pick("fast", relu(1100), [slow, quick])[0] == 1
    slow, quick = bench.kernel("a", 3), bench.kernel("b", 40, 1, workspace=1024)
    assert tuner.pick("fast", relu(1001), [slow, quick])[0] == 0


def test_a_large_block_goes_back_after_the_trial(bench, relu):
    tuner = bench.tuner()
    tuner.pick("fast", relu(KEPT // 4), [bench.kernel("a", 1), bench.kernel("b", 1)])
    assert bench.allocator.peak == 2 * KEPT
    assert bench.allocator.held == 0


def test_the_memory_goes_when_the_tuner_is_forgotten(relu, bench):
    candidates = [bench.kernel("a", 1), bench.kernel("b", 1)]
    tuner = bench.tuner()
    tuner.pick("fast", relu(), candidates)
    block = weakref.ref(tuner._scratch._block)
    assert block() is not None
    del tuner
    gc.collect()
    assert block() is None


def test_without_room_for_a_trial_the_first_candidate_is_taken(bench, relu):
    bench.allocator.room = 1000
    candidates = [bench.kernel("a", 9), bench.kernel("b", 1)]
    tuner = bench.tuner()
    assert tuner.pick("fast", relu(1000), candidates) == (0, "not tried: too little memory")
    bench.allocator.room = 10000
    assert tuner.pick("fast", relu(1000), candidates)[0] == 1

import pytest
from tests.real.test_resume import *
from tests.real.conftest import *
MINE = ["sliced", "vap(bound=0.1)", "a_bsp(chunks=2)", "specsync(parts=2)", "gradient_coding", "downpour(push=2, fetch=3)", "sandblaster"]
@pytest.mark.parametrize("strategy", MINE)
def test_mine_goes_on(room, strategy):
    task, kept = hard(room), room.path / "kept"
    broken = fit(task, strategy, 3, epochs=8, checkpoint=kept, every="1h", watcher=Watch(trained(150), interrupt))
    assert broken.stopped == "interrupted"
    resumed = fit(task, strategy, 3, epochs=8, checkpoint=kept, resume=kept, every="150ms")
    assert resumed.stopped == "budget"
    assert strategy.startswith("a_bsp") or resumed.samples == 8 * 70
@pytest.mark.parametrize("strategy", MINE)
def test_mine_kept_when_some_have_ended(room, strategy):
    slow = "time.sleep(0.03) if CALLS[0] > 20 else None"
    task, kept = room.task(samples=41, batch_size=20, before_step=slow), room.path / "kept"
    watch = Watch(lambda now: now.roles["worker 0"].step >= (12 if strategy == "sandblaster" else 24), lambda: room.kill("worker 0"))
    with pytest.raises(PeerLost):
        fit(task, strategy, 2, epochs=20, checkpoint=kept, every="50ms", watcher=watch)
    resumed = fit(task, strategy, 2, epochs=20, resume=kept)
    assert resumed.stopped == "budget"
    assert strategy.startswith("a_bsp") or resumed.samples == 20 * 41

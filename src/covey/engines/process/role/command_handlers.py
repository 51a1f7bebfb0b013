"""A role's handlers for the launcher's commands: go, undo, freeze, hold, stop, snapshot, save, quit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covey.engines.broken_rounds import in_round
from covey.engines.pace import rests
from covey.engines.process import control
from covey.engines.process.role.driver import Driver
from covey.engines.process.role.saving import state_of, write_aside
from covey.engines.process.snapshot_parts import SCORER, part
from covey.engines.transport.zmq import ZmqTransport
from covey.membership import Departed, Joined, ViewChanged
from covey.model.named import named_numbers
from covey.program import Receive

NOTHING_READ = 1 << 62


def obey(driver: Driver, word: control.Downward) -> None:
    """Do what the word says."""
    ORDERS[type(word)](driver, word)


def go(driver: Driver, word: control.Go) -> None:
    driver.host.incarnation = driver.host.incarnation._replace(step=word.step, ended=frozenset(word.ended))
    driver.metrics.watch.reach(word.seconds)
    if driver.links.memory:
        driver.links.memory.blocks.release(word.free)
    driver.metrics.watch.start()
    driver.start()
    driver.line.tell(control.Started())


def install(driver: Driver, word: control.Install) -> None:
    """Speak to another incarnation of a role; programs hear of it after all that the earlier one sent."""
    unread = [message for message in driver.host.mailbox.waiting if message.sender == word.who]
    if driver.links.renew(word.who, word.incarnation, word.endpoint, unread, word.empty) and not driver.programs.ended:
        driver.deliver((Departed if word.empty else Joined)(word.incarnation, sender=word.who))
        if driver.host.breakable:
            break_off(driver)
    driver.line.tell(installed(driver.links, word, driver.programs.ended))


def break_off(driver: Driver) -> None:
    """Somebody went or came: the program no longer waits for what its peers would have sent in this round."""
    running = driver.programs.main
    if running is None or running is driver.programs.held or not in_round(running.effect, driver.host.mailbox):
        return
    if isinstance(running.effect, Receive):
        driver.links.forget(running.effect)
    elif driver.effects.sums:
        driver.effects.sums.wanted.clear()
    driver.answer(running, None, ViewChanged())


def undo(driver: Driver, word: control.Undo) -> None:
    driver.quit = "undone"


def freeze(driver: Driver, word: control.Freeze) -> None:
    if word.score is not None:
        driver.replica.progress.hear(word.score)
    if word.step is None:
        return driver.requests.freeze()
    driver.requests.pause_at = word.step
    driver.requests.pause_here()


def thaw(driver: Driver, word: control.Thaw) -> None:
    driver.requests.pause.end(word.pause)


def skip(driver: Driver, word: control.Skip) -> None:
    driver.metrics.watch.skip(word.seconds)


def where(driver: Driver, word: control.AskNextStep) -> None:
    """Hold at the next step. One that is in its last step has a next one too, which it will not begin."""
    over = driver.programs.ended or not driver.host.role.trains or driver.host.pace.over(driver.host.pace.step)
    at = None if over else driver.host.pace.step if driver.programs.held else driver.host.pace.next
    main = driver.programs.main
    resting = at is not None and main is not None and rests(main.effect)
    driver.host.pace.hold_at = driver.host.pace.step if resting else at  # it does not even begin again
    driver.line.tell(control.NextStep(at, resting))


def hold(driver: Driver, word: control.Hold) -> None:
    driver.host.pace.hold_at = word.step
    if driver.programs.held is None and driver.host.pace.over(driver.host.pace.step):
        driver.hold()
    elif not driver.host.pace.holds():
        let_go(driver)


def release(driver: Driver, word: control.Release) -> None:
    driver.metrics.watch.start()
    driver.host.pace.hold_at = None
    if word.train:
        let_go(driver)
    elif driver.programs.held is not None:
        driver.close_down()


def stop(driver: Driver, word: control.Stop) -> None:
    driver.host.pace.stop_at, driver.host.pace.hold_at = word.step, None
    driver.requests.cancel_pause()
    let_go(driver)


def let_go(driver: Driver) -> None:
    """Perform the effect at which the program was held."""
    held, driver.programs.held = driver.programs.held, None
    if held is not None:
        held.since = time.monotonic()
        assert held.effect is not None
        driver.requests.pause_here()
        answered, value = driver.perform(held, held.effect)
        if answered:
            driver.answer(held, value)


def probe(driver: Driver, word: control.CountMessages) -> None:
    busy = driver.requests.busy or bool(driver.programs.ready)
    busy = busy or bool(driver.effects.sums and driver.effects.sums.wanted)
    sent = driver.links.sent.total() - driver.links.sent[SCORER]
    received = driver.links.received.total()
    driver.line.tell(control.MessageCounts(sent, received, busy))


def shoot(driver: Driver, word: control.TakeSnapshot) -> None:
    taken = driver.replica.snapshot(driver.host.role.scored, counts=driver.host.role.trains)
    driver.links.offer(SCORER, part(taken, driver.host.me), loan=True)


def save(driver: Driver, word: control.Save) -> None:
    driver.report(now=True)  # what the launcher keeps must be as new as what the role keeps
    driver.metrics.watch.stop()
    held, seconds = driver.programs.held is not None, driver.metrics.watch.now()
    ended = driver.programs.ended
    copy = state_of(driver.host, driver.replica, held=held, ended=ended, seconds=seconds).copied(named_numbers)
    write_aside(copy, Path(word.directory), driver.host.me, driver.line)
    driver.line.tell(control.Copied())


def verdict(driver: Driver, word: control.VoteResult) -> None:
    assert driver.line.loop is not None, "a role that has no loop of the user's own took part in a vote"
    driver.line.loop(word)


def installed(links: ZmqTransport, word: control.Install, ended: bool) -> control.Installed:
    """That another incarnation of a role is spoken to."""
    known = links.memory.neighbours if links.memory else ()
    floor = links.memory.neighbours.of(word.who).floor() if links.memory and word.who in known else NOTHING_READ
    return control.Installed(word.who, word.incarnation, floor, ended)


def quit_now(driver: Driver, word: control.Quit) -> None:
    driver.quit = driver.quit or "over"


ORDERS: dict[type[control.ControlMessage], Callable[[Driver, Any], None]] = {
    control.Go: go, control.Install: install, control.Undo: undo,
    control.Freeze: freeze, control.Thaw: thaw, control.Skip: skip,
    control.AskNextStep: where, control.Hold: hold, control.Release: release, control.Stop: stop,
    control.CountMessages: probe, control.TakeSnapshot: shoot, control.Save: save,
    control.VoteResult: verdict, control.Quit: quit_now,
}  # fmt: skip

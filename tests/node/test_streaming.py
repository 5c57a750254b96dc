"""Logs on their way from the agent: byte-exact, whoever reads them how, and with their ends told."""

from __future__ import annotations

import hashlib
import os
import selectors
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from engine.wire import Decoder

HANDSHAKE = b"TRAINUI1 "
# A rank that writes `size` bytes that no encoding knows, in uneven pieces, then what `then` says.
WRITER = """
import os, random
rng = random.Random(int(os.environ["LOCAL_RANK"]))
left = {size}
while left:
    piece = rng.randbytes(min(left, rng.randrange(1, 200000)))
    left -= len(piece)
    while piece:
        piece = piece[os.write(1, piece):]
"""


@pytest.fixture
def dial(node: Any, client: Any) -> Any:
    """`dial(**spec)`: a bridge that also takes payloads, and puts logs together."""

    class LogBridge(client.Bridge):
        def __init__(self, spec: Any, **options: Any) -> None:
            super().__init__(spec, **options)
            self.decoder = Decoder()
            self.logs: dict[tuple[int, int], bytearray] = {}
            self.sizes: list[int] = []
            self.payloads: dict[int, bytes] = {}

        def pump(self, seconds: float) -> None:
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                if not selector.select(seconds):
                    return
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            self.eof = not data
            if not self.ready:
                self._buffer += data
                _, found, data = self._buffer.partition(HANDSHAKE + self._nonce.encode() + b"\n")
                self.ready = bool(found)
                if not found:
                    return
            for frame in self.decoder.feed(data):
                self.frames.append(frame.head)
                if frame.type == "log":
                    self.take(frame)
                elif frame.type == "re" and frame.payload:
                    self.payloads[frame.head["id"]] = frame.payload

        def take(self, frame: Any) -> None:
            log = self.logs.setdefault((frame.head["attempt"], frame.head["rank"]), bytearray())
            if frame.head.get("truncated"):
                log.clear()
            self.sizes.append(len(frame.payload))
            assert frame.head["offset"] == len(log), "each piece begins where the one before it ended"
            log += frame.payload

        def follow(self, rank: int = 0, attempt: int = 0, **fields: Any) -> None:
            log = self.logs.setdefault((attempt, rank), bytearray())
            answer = self.ask("subscribe", rank=rank, attempt=attempt, **{"offset": len(log), **fields})
            assert answer["ok"], answer

        def until_final(self, rank: int = 0, attempt: int = 0) -> bytes:
            key = (attempt, rank)
            end = self.until(
                lambda f: f["t"] == "logend" and (f["attempt"], f["rank"]) == key and f["final"], f"the end of {key}"
            )
            assert end["size"] == len(self.logs[key])
            return bytes(self.logs[key])

    def dial(**spec: Any) -> LogBridge:
        bridge = LogBridge({**node.spec, "nonce": os.urandom(4).hex(), **spec})
        node.bridges.append(bridge)
        bridge.until(lambda f: f["t"] == "state", "the first state")
        return bridge

    return dial


def on_disk(node: Any, rank: int = 0, attempt: int = 0) -> bytes:
    return (node.node_dir / f"attempt_{attempt}/rank_{rank:05d}.log").read_bytes()


def status_of(node: Any) -> str:
    """What the kernel says of the agent."""
    return Path(f"/proc/{node.agent_pid()}/status").read_text()


def same(a: bytes, b: bytes) -> bool:
    """Without the megabytes of difference that pytest would print."""
    return hashlib.sha256(a).digest() == hashlib.sha256(b).digest()


def test_a_log_comes_as_it_grows_and_its_end_is_told(node: Any, dial: Any) -> None:
    node.runs(r"printf 'a\xff\x00b\r'; while [ ! -e go ]; do sleep 0.01; done; printf 'no newline'")
    bridge = dial()
    assert bridge.ask("start", attempt=0)["ok"]
    bridge.follow()
    bridge.until(lambda f: f["t"] == "log", "the first piece")
    assert bytes(bridge.logs[0, 0]) == b"a\xff\x00b\r"
    assert not [f for f in bridge.frames if f["t"] == "logend"], "it is not over"
    (node.cwd / "go").touch()
    assert bridge.until_final() == b"a\xff\x00b\rno newline" == on_disk(node)


def test_eight_ranks_at_once(node: Any, dial: Any) -> None:
    node.runs(*[node.python(WRITER.format(size=3_000_000 + 1000 * i)) for i in range(8)])
    bridge = dial()
    for rank in range(8):
        bridge.follow(rank)
    assert bridge.ask("start", attempt=0)["ok"]
    for rank in range(8):
        assert same(bridge.until_final(rank), on_disk(node, rank))
    order = [f["rank"] for f in bridge.frames if f["t"] == "log"]
    assert set(order[: len(order) // 2]) == set(range(8)), "nobody waits for another one's end"


def test_cut_again_and_again_it_ends_byte_exact(node: Any, dial: Any) -> None:
    node.runs(node.python(WRITER.format(size=40_000_000)))
    bridge = dial()
    assert bridge.ask("start", attempt=0)["ok"]
    log: bytearray = bytearray()
    for cut in range(6):
        bridge.logs[0, 0] = log
        bridge.follow()
        bridge.until(lambda f, b=bridge, c=cut: len(b.logs[0, 0]) > 5_000_000 * (c + 1), "some megabytes")
        bridge.process.kill()
        log = bridge.logs[0, 0]
        bridge = dial()
    bridge.logs[0, 0] = log
    bridge.follow()
    assert same(bridge.until_final(), on_disk(node)) and len(log) == 40_000_000


def test_a_slow_reader_loses_nothing_and_holds_up_nobody(node: Any, dial: Any) -> None:
    node.runs(node.python(WRITER.format(size=30_000_000)), "sleep 1000")
    slow, other = dial(), dial()
    slow.follow()
    assert other.ask("start", attempt=0)["ok"]
    # It reads nothing until the rank is over; meanwhile the agent answers others at once, and stays small.
    other.until(lambda f: f["t"] == "exit" and f["rank"] == 0 and f["code"] == 0, "the writer's end")
    assert other.ask("ping")["ok"]
    status = status_of(node)
    assert int(status.partition("VmRSS:")[2].split()[0]) < 60_000, "kB: the file is the buffer"
    slow.until(lambda f: f["t"] == "logend", "the end of the log")
    assert same(bytes(slow.logs[0, 0]), on_disk(node)) and not slow.eof
    assert max(slow.sizes) >= 200_000


def test_a_child_that_writes_on_after_its_rank(node: Any, dial: Any) -> None:
    node.runs("(while [ ! -e go ]; do sleep 0.01; done; echo late; sleep 1000) & echo early", "sleep 1000")
    bridge = dial()
    assert bridge.ask("start", attempt=0)["ok"]
    bridge.follow()
    first = bridge.until(lambda f: f["t"] == "logend", "the rank's end")
    assert not first["final"] and first["size"] == len(b"early\n")
    (node.cwd / "go").touch()
    more = bridge.until(lambda f: f["t"] == "logend" and f["size"] > first["size"], "what came later")
    assert not more["final"]
    bridge.ask("stop", grace_s=1)
    assert bridge.until_final() == b"early\nlate\n"


@pytest.mark.parametrize("again", ["", "second life\n" * 50], ids=["emptied", "written on"])
def test_a_log_that_somebody_empties(node: Any, dial: Any, again: str) -> None:
    node.runs("for i in 1 2 3 4 5 6 7 8; do echo line $i; done; while [ ! -e go ]; do sleep 0.01; done; echo done")
    bridge = dial()
    assert bridge.ask("start", attempt=0)["ok"]
    bridge.follow()
    bridge.until(lambda f: len(bridge.logs[0, 0]) == 56, "eight lines")
    # In one step, as it might be between two looks.
    path = node.node_dir / "attempt_0/rank_00000.log"
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(again.encode())
    bridge.until(lambda f: f["t"] == "log" and f.get("truncated") and f["offset"] == 0, "the news that it was emptied")
    (node.cwd / "go").touch()
    assert bridge.until_final() == again.encode() + b"done\n" == on_disk(node)


def test_a_copy_of_something_else_is_replaced(node: Any, dial: Any) -> None:
    node.runs("seq 1000")
    bridge = dial()
    assert bridge.ask("start", attempt=0)["ok"]
    bridge.end()
    text = on_disk(node)
    right = {"n": 100, "sha256": hashlib.sha256(text[900:1000]).hexdigest()}
    bridge.logs[0, 0] = bytearray(text[:1000])
    bridge.follow(tail=right)
    assert bridge.until_final() == text and not [f for f in bridge.frames if f.get("truncated")]
    other = dial()
    other.logs[0, 0] = bytearray(b"x" * 1000)
    other.follow(tail={**right, "sha256": hashlib.sha256(b"x" * 100).hexdigest()})
    assert other.until_final() == text
    longer = dial()
    longer.logs[0, 0] = bytearray(text + b"more than there is")
    longer.follow()
    assert longer.until_final() == text


def test_ranges_can_be_read(node: Any, dial: Any) -> None:
    node.runs(node.python(WRITER.format(size=3_000_000)), "true")
    bridge = dial()
    assert bridge.ask("start", attempt=0)["ok"]
    bridge.end()
    text = on_disk(node)

    def read(offset: int, size: int, **where: Any) -> tuple[Any, bytes]:
        answer = bridge.ask("read", **{"rank": 0, "attempt": 0, "offset": offset, "size": size, **where})
        return answer, bridge.payloads.get(answer["id"], b"")

    for offset, size in [(0, 10), (1234, 100_000), (2_999_990, 100), (3_000_000, 5), (9_000_000, 5)]:
        answer, data = read(offset, size)
        assert answer["ok"] and answer["size"] == 3_000_000
        assert data == text[offset : offset + size]
    answer, data = read(0, 3_000_000)
    assert data == text[: 1 << 20], "an answer has a limit"
    assert read(0, 5, rank=7)[0]["error"] == "read: rank 7 is not on this node"
    assert read(0, 5, attempt=4)[0]["error"] == "read: no such file or directory"
    for bad in ({"size": 0}, {"offset": -1}, {"size": "x"}, {"attempt": 1 << 70}, {"offset": 1 << 70}):
        assert not read(**{"offset": 0, "size": 5, **bad})[0]["ok"]
    assert bridge.ask("ping")["ok"], "nothing of that hurt it"


def test_unsubscribed_logs_stop_coming(node: Any, dial: Any) -> None:
    node.runs("echo one; while [ ! -e go ]; do sleep 0.01; done; echo two")
    bridge = dial()
    assert bridge.ask("start", attempt=0)["ok"]
    bridge.follow()
    bridge.until(lambda f: f["t"] == "log", "the first piece")
    assert bridge.ask("unsubscribe", rank=0, attempt=0)["ok"]
    (node.cwd / "go").touch()
    bridge.end()
    assert bytes(bridge.logs[0, 0]) == b"one\n" and on_disk(node) == b"one\ntwo\n"
    assert not [f for f in bridge.frames if f["t"] == "logend"]


def test_what_cannot_be_subscribed_is_refused_in_words(node: Any, dial: Any) -> None:
    bridge = dial()
    for fields, why in [
        ({"rank": 5, "attempt": 0}, "rank 5 is not on this node"),
        ({"rank": 0, "attempt": -1}, "cannot be negative"),
        ({"rank": 0, "attempt": 0, "offset": 10, "tail": {"n": 11, "sha256": ""}}, "before the offset"),
        ({"rank": 0}, "attempt"),
    ]:
        answer = bridge.ask("subscribe", **fields)
        assert not answer["ok"] and why in answer["error"]


def test_older_attempts_and_a_fresh_agent(node: Any, dial: Any) -> None:
    node.runs('echo "attempt $TRAINUI_ATTEMPT"')
    bridge = dial()
    for attempt in range(2):
        assert bridge.ask("start", attempt=attempt)["ok"]
        bridge.until(lambda f, a=attempt: f["t"] == "phase" and f["attempt"] == a and f["phase"] == "down", "down")
    assert bridge.state()["logs"] == {"0": {"0": 10}, "1": {"0": 10}}
    node.kill_agent()
    bridge = dial()
    for attempt in range(2):
        bridge.follow(attempt=attempt)
        assert bridge.until_final(attempt=attempt) == b"attempt %d\n" % attempt


def test_it_costs_nothing_while_nobody_asks(node: Any, dial: Any) -> None:
    node.runs("while :; do echo x; sleep 0.01; done")
    bridge = dial()
    assert bridge.ask("start", attempt=0)["ok"]

    def switches() -> int:
        return int(status_of(node).partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    bridge.follow()
    bridge.until(lambda f: f["t"] == "log", "a piece")
    assert bridge.ask("unsubscribe", rank=0, attempt=0)["ok"]
    before, begun = switches(), time.monotonic()
    while time.monotonic() - begun < 2:
        bridge.pump(0.2)
    # It looks at its processes once a second; with a subscription it would look 10 to 200 times.
    assert switches() - before < 15
    bridge.ask("stop", grace_s=0)
    bridge.end()


@pytest.mark.parametrize(("written", "shared"), [("right", True), ("wrong", False), (None, False)])
def test_the_disk_is_shared_where_the_token_is_seen(node: Any, dial: Any, written: str | None, shared: bool) -> None:
    if written is not None:
        node.node_dir.mkdir(parents=True)
        (node.node_dir / ".token-1").write_text(written + "\n")
    bridge = dial(token={"name": ".token-1", "value": "right"})
    assert bridge.state()["shared"] is shared
    assert node.json("node.json").keys() & {"token", "shared"} == set()
    # It is remembered, by the agent and by the one after it.
    (node.node_dir / ".token-1").unlink(missing_ok=True)
    assert dial().state()["shared"] is shared
    assert bridge.ask("start", attempt=0)["ok"]
    bridge.end()
    node.kill_agent()
    assert dial().state()["shared"] is shared


def test_a_token_that_is_seen_later_counts(node: Any, dial: Any) -> None:
    assert dial().state()["shared"] is None
    (node.node_dir / ".token-2").write_text("v")
    bridge = dial(token={"name": ".token-2", "value": "v"})
    bridge.until(lambda f: f["t"] == "state" and f["shared"] is True, "the news")
    node.wait_for(lambda: node.json("agent.json")["shared"] is True, "the note of it")


def test_a_reader_that_is_frozen_while_the_run_ends(node: Any, dial: Any) -> None:
    node.runs(node.python(WRITER.format(size=20_000_000)))
    bridge, other = dial(), dial()
    bridge.follow()
    os.kill(bridge.process.pid, signal.SIGSTOP)
    try:
        assert other.ask("start", attempt=0)["ok"]
        other.phase("down")
    finally:
        os.kill(bridge.process.pid, signal.SIGCONT)
    assert same(bridge.until_final(), on_disk(node))

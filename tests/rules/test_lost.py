"""Which memory nobody can use while somebody waits, and what a minute of it adds up to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grn.rules.lost import CAUSES, lost_now
from grn.rules.minutes import Minutes, held_now
from tests.rules.acting import Stage


def _lost(stage: Stage) -> dict[str, int]:
    return lost_now(stage.machine)


def test_nobody_waits_nothing_is_lost() -> None:
    """Free memory that nobody wants is not lost; nor is that of a job that wants no device."""
    stage = Stage(10000)
    stage.ask("probe")
    assert _lost(stage) == {}
    stage.ask("cpus", gpus=None, cpus=8)
    stage.ask("cpus", gpus=None, cpus=8)
    assert _lost(stage) == {}


def test_a_probe_keeps_its_device_to_itself() -> None:
    """What it does not use of it is lost, and what others hold there is not."""
    stage = Stage(10000)
    probe = stage.ask("unknown")
    stage.others(0, 500)
    stage.hold(probe, 2000)
    stage.ask("known", memory_mib=1000)
    assert _lost(stage) == {"probe": 7500, "fragmentation": 0, "head": 0}


def test_a_device_that_was_asked_for_whole_is_not_lost() -> None:
    """Who asks for all of it has it."""
    stage = Stage(10000)
    stage.ask("all", whole=True)
    stage.ask("known", memory_mib=1000)
    assert _lost(stage) == dict.fromkeys(CAUSES, 0)


def test_free_in_pieces_that_are_too_small() -> None:
    """Two devices with 3000 MiB each do not help a job of 4000; what is kept for it is the head's."""
    stage = Stage(10000, 10000)
    for _ in range(2):
        stage.ask("big", memory_mib=7000)
    stage.ask("next", memory_mib=4000)
    assert _lost(stage) == {"probe": 0, "fragmentation": 3000, "head": 3000}


def test_what_is_kept_for_the_head() -> None:
    """The head waits for a second device, so the first one is kept; a small job waits behind it."""
    stage = Stage(10000, 10000)
    stage.ask("long", memory_mib=10000)
    stage.ask("pair", memory_mib=10000, gpus=2)
    stage.ask("small", memory_mib=1000)
    assert _lost(stage) == {"probe": 0, "fragmentation": 0, "head": 10000}


def test_what_would_do_is_not_lost() -> None:
    """A request that waits for CPUs finds the device large enough: its memory is not what lacks."""
    stage = Stage(10000)
    stage.ask("busy", memory_mib=1000, cpus=8)
    stage.ask("waits", memory_mib=1000, cpus=8)
    assert _lost(stage)["fragmentation"] == 0


# -- by the minute --------------------------------------------------------------------------------


def test_a_minute_is_told_when_it_is_over() -> None:
    """Half a minute of 1000 MiB and half a minute of 3000 MiB are 2000 MiB in the mean."""
    minutes = Minutes()
    minutes.look(0.0, {"d": (1000, 500, 0, 40)}, {})
    assert not minutes.look(30.0, {"d": (3000, 500, 0, 40)}, {"probe": 100}).usage
    told = minutes.look(75.0, {}, {})
    assert told.usage == [(0.0, "d", 2000.0, 500.0, 0.0, 40.0)]
    assert told.lost == [(0.0, "probe", 3000.0)]
    rest = minutes.close()
    assert rest.usage == [(60.0, "d", 3000.0, 500.0, 0.0, 40.0)]
    assert rest.lost == [(60.0, "probe", 1500.0)]


def test_what_was_unknown_for_a_part_is_unknown() -> None:
    """A mean over what was known would be a guess."""
    minutes = Minutes()
    minutes.look(0.0, {"d": (1000, None, 0, 40)}, {})
    minutes.look(30.0, {"d": (1000, 500, 0, 40)}, {})
    assert minutes.look(60.0, {}, {}).usage == [(0.0, "d", 1000.0, None, 0.0, 40.0)]


def test_a_clock_that_is_set_back_counts_nothing() -> None:
    """Times of day may jump; a minute is never negative."""
    minutes = Minutes()
    minutes.look(100.0, {"d": (1000, 500, 0, 40)}, {"head": 5})
    minutes.look(10.0, {"d": (1000, 500, 0, 40)}, {"head": 5})
    told = minutes.look(20.0, {}, {})
    assert not told.usage
    assert minutes.close().lost == [(0.0, "head", 50.0)]


def test_time_that_the_machine_has_slept_counts_nothing() -> None:
    """A day passes on the clock, ten seconds of it awake."""
    minutes = Minutes()
    minutes.look(100.0, {"d": (1000, 500, 0, 40)}, {"head": 5})
    told = minutes.look(86500.0, {}, {}, after_s=10.0)
    assert [*told.lost, *minutes.close().lost] == [(86460.0, "head", 50.0)]


@given(
    st.lists(
        st.tuples(st.floats(0.01, 200.0), st.integers(0, 5000), st.integers(0, 900)), min_size=1
    )
)
def test_minutes_add_up_to_the_whole(looks: list[tuple[float, int, int]]) -> None:
    """What is told of all minutes together is what was lost, however the looks lay."""
    minutes, at, lost = Minutes(), 0.0, 0.0
    told: list[float] = []
    for seconds, booked, missing in looks:
        over = minutes.look(at, {"d": (booked, booked, 0, None)}, {"probe": missing})
        told += [mib_s for _, _, mib_s in over.lost]
        assert all(0 <= mean <= 5000 for _, _, mean, _, _, _ in over.usage)
        at += seconds
        lost += missing * seconds
    over = minutes.look(at, {}, {})
    told += [mib_s for _, _, mib_s in [*over.lost, *minutes.close().lost]]
    assert abs(sum(told) - lost) <= 1e-6 * max(1.0, lost)


def test_only_devices_with_leases_are_held() -> None:
    """A device without a lease has no row, and one that nobody can read no figure."""
    stage = Stage(10000, 10000)
    job = stage.ask(memory_mib=4000)
    stage.hold(job, 1500)
    books = stage.machine.ledger.books
    books[0].utilisation = 70
    assert held_now(books) == {"GPU-0000": (4000, 1500, 0, 70)}
    books[0].usage_known = False
    assert held_now(books) == {"GPU-0000": (4000, 1500, None, 70)}

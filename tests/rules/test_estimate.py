"""What is booked for a next run, from what earlier runs showed."""

from __future__ import annotations

import pytest

from grn.rules.estimate import WINDOW, Margin, Profile, bumped
from grn.rules.peaks import Peak
from grn.rules.profiles import ProfileBook, from_record, to_record
from grn.rules.wire import decode, encode

EXACT = Margin(0, 0)


def _profile(*peaks: int) -> Profile:
    profile = Profile("job", "m")
    for mib in peaks:
        profile.succeeded(mib, 1.0, "sampled")
    return profile


@pytest.mark.parametrize(
    ("peak", "booked"), [(0, 256), (100, 356), (5120, 5376), (5121, 5378), (40000, 42000)]
)
def test_margin_is_a_share_or_a_floor(peak: int, booked: int) -> None:
    """The default margin is 5 %, but at least 256 MiB."""
    assert Margin().on(peak) == booked


def test_the_smallest_peak_gets_its_margin_too() -> None:
    """A type that holds next to nothing is booked with the floor."""
    assert _profile(1).estimate_mib(Margin()) == 257
    assert _profile(0).estimate_mib(EXACT) == 0


def test_no_margin_books_the_exact_peak() -> None:
    """A margin of zero gives the measured number."""
    assert _profile(3000).estimate_mib(EXACT) == 3000


def test_nothing_is_estimated_before_anything_succeeded() -> None:
    """An unknown type has no estimate; failures and cancellations do not give it one."""
    profile = Profile("job", "m")
    profile.failed("failed", 1.0)
    profile.failed("oom", 1.0, oom_at_mib=8000)
    profile.cancelled(1.0)
    assert profile.estimate_mib(EXACT) is None
    assert profile.peak_mib is None
    assert profile.state == "unmeasured"


def test_the_largest_recent_peak_counts() -> None:
    """A smaller later peak lowers nothing at once."""
    assert _profile(2000, 5000, 1000).estimate_mib(EXACT) == 5000


def test_the_window_forgets() -> None:
    """A type that shrank for good is booked less once its large runs are out of the window."""
    assert _profile(9000, *[1000] * (WINDOW - 1)).estimate_mib(EXACT) == 9000
    assert _profile(9000, *[1000] * WINDOW).estimate_mib(EXACT) == 1000


def test_of_each_kind_the_last_twenty_are_kept() -> None:
    """Peaks, run times, ends, and how busy it kept its device."""
    profile = _profile(*range(1, 31))
    for percent in range(30):
        profile.kept_busy(percent)
    assert profile.peaks == list(range(11, 31))
    assert profile.durations_s == [1.0] * 20
    assert profile.outcomes == ["ok"] * 20
    assert profile.busy_percent == list(range(10, 30))


def test_of_a_new_type_nothing_is_known() -> None:
    """No peak, no failure, no raise: what is unknown is not a number."""
    assert Profile("job", "m") == Profile(
        "job",
        "m",
        window=[],
        durations_s=[],
        outcomes=[],
        runs=0,
        first_at=None,
        last_at=None,
        quantiles_mib=[],
        busy_percent=[],
        preallocated=False,
        unmeasured=0,
        failures=0,
        ooms=0,
        set_mib=None,
        provisional_mib=None,
        raised_mib=0,
        raised_source="sampled",
        raised_age=0,
        bump_mib=None,
    )


def test_ends_are_kept_in_their_order() -> None:
    """Each with its name; only those that ended well have a run time."""
    profile = Profile("job", "m")
    profile.failed("failed", 1.0)
    profile.succeeded(100, 2.00049, "sampled")
    profile.cancelled(3.0)
    profile.failed("oom", 4.0, oom_at_mib=200)
    profile.failed("oom", 5.0, oom_at_mib=200)
    assert profile.outcomes == ["failed", "ok", "cancelled", "oom", "oom"]
    assert profile.durations_s == [2.0]
    assert (profile.failures, profile.ooms) == (2, 2)


def test_a_run_without_figures_is_not_a_zero() -> None:
    """A success that could not be measured is counted as that and changes no estimate."""
    profile = _profile(3000)
    profile.succeeded(None, 1.0, "sampled")
    assert profile.estimate_mib(EXACT) == 3000
    assert profile.unmeasured == 1


@pytest.mark.parametrize(("booked", "after"), [(1000, 1512), (2000, 2600), (0, 512)])
def test_more_is_booked_after_an_oom(booked: int, after: int) -> None:
    """The next try gets a third more, but at least 512 MiB more."""
    assert bumped(booked) == after


def test_a_success_ends_the_raise_after_an_oom() -> None:
    """Once a larger run succeeded its peak counts, not the guess that let it run."""
    profile = _profile(3000)
    profile.failed("oom", 1.0, oom_at_mib=3000)
    assert profile.estimate_mib(EXACT) == 3900
    profile.succeeded(3200, 1.0, "sampled")
    assert profile.estimate_mib(EXACT) == 3200
    assert profile.ooms == 0


def test_a_peak_of_a_running_job_counts_at_once() -> None:
    """A job that outgrows its booking raises the estimate before it ends, and says so once."""
    profile = _profile(3000)
    assert profile.outgrown(5000)
    assert not profile.outgrown(5000)
    assert profile.estimate_mib(EXACT) == 5000


def test_a_peak_of_a_failed_job_fades_with_the_window() -> None:
    """What a failed run held raises later bookings for as long as any other peak would."""
    profile = _profile(3000)
    profile.outgrown(5000)
    profile.failed("failed", 1.0)
    for _ in range(WINDOW - 1):
        profile.succeeded(3000, 1.0, "sampled")
    assert profile.estimate_mib(EXACT) == 5000
    profile.succeeded(3000, 1.0, "sampled")
    assert profile.estimate_mib(EXACT) == 3000


def test_a_person_may_set_the_need() -> None:
    """A size that somebody set is booked as it is; only a larger peak outranks it."""
    profile = Profile("job", "m", set_mib=4000)
    assert profile.estimate_mib(Margin()) == 4000
    profile.succeeded(1000, 1.0, "sampled")
    assert profile.estimate_mib(Margin()) == 4000
    profile.succeeded(4000, 1.0, "sampled")
    assert profile.estimate_mib(Margin()) == 4000
    profile.succeeded(5000, 1.0, "sampled")
    assert profile.estimate_mib(Margin()) == 5256


def test_a_provisional_profile_is_wide_until_the_end() -> None:
    """Half as much again is booked while the first run lasts, its peak once it succeeded."""
    profile = Profile("job", "m", provisional_mib=2000)
    assert profile.state == "provisional"
    assert profile.estimate_mib(EXACT) == 3000
    profile.succeeded(2100, 1.0, "sampled")
    assert profile.state == "settled"
    assert profile.estimate_mib(EXACT) == 2100


def test_a_censored_peak_raises() -> None:
    """A run that survived an out-of-memory needs at least what it had."""
    profile = _profile(3000)
    profile.succeeded(4000, 1.0, "sampled", censored=True)
    assert profile.estimate_mib(EXACT) == 4000
    assert profile.window[-1] == Peak(4000, "sampled", None, censored=True)


def test_censored_peaks_never_lower() -> None:
    """However many runs had to do with less, what one run needed stays booked."""
    profile = _profile(3000)
    profile.outgrown(5000)
    for _ in range(2 * WINDOW):
        profile.succeeded(1000, 1.0, "sampled", censored=True)
    assert profile.estimate_mib(EXACT) == 5000
    assert profile.peaks == [3000]
    assert profile.runs == 1 + 2 * WINDOW


def test_a_censored_peak_that_is_no_larger_moves_nothing() -> None:
    """The window is that of full runs."""
    profile = _profile(3000)
    profile.succeeded(3000, 1.0, "sampled", censored=True)
    assert profile.window == [Peak(3000, "sampled")]


def test_a_raise_ends_when_a_run_reaches_it() -> None:
    """Then its peak stands in the window; a smaller one changes no estimate, and says so."""
    profile = _profile(3000)
    assert profile.outgrown(5000)
    assert profile.outgrown(5000) is False
    profile.succeeded(4999, 1.0, "sampled")
    assert (profile.raised_mib, profile.raised_age) == (5000, 1)
    profile.succeeded(5000, 1.0, "sampled")
    assert (profile.raised_mib, profile.raised_age) == (0, 0)
    assert profile.estimate_mib(EXACT) == 5000


def test_a_censored_success_keeps_the_raise_after_an_oom() -> None:
    """The real need was not shown, so the next run still gets more."""
    profile = _profile(3000)
    profile.failed("oom", 1.0, oom_at_mib=3000)
    profile.succeeded(3000, 1.0, "sampled", censored=True)
    assert profile.estimate_mib(EXACT) == 3900


def test_a_censored_first_run_settles_the_type() -> None:
    """It succeeded, so later runs may share a device."""
    profile = Profile("job", "m")
    profile.succeeded(2000, 1.0, "sampled", censored=True)
    assert (profile.state, profile.estimate_mib(EXACT)) == ("settled", 2000)


def test_the_source_is_that_of_the_largest_peak() -> None:
    """What an estimate rests on is told, and of equals the better known one."""
    profile = Profile("job", "m")
    assert profile.source is None
    profile.succeeded(2000, 1.0, "device-delta")
    profile.succeeded(2000, 1.0, "accounting")
    profile.succeeded(1000, 1.0, "sampled")
    assert profile.source == "accounting"
    assert Profile("job", "m", set_mib=100).source is None
    unknown = Profile("job", "m")
    assert unknown.outgrown(1, "in-process")
    assert unknown.source is None
    profile.outgrown(3000, "in-process")
    assert profile.source == "in-process"


def test_dates_are_those_of_measured_runs() -> None:
    """First and last are told where the time of day is known; a run without it changes neither."""
    profile = Profile("job", "m")
    for at in (None, 100.0, 200.0, None):
        profile.succeeded(1000, 1.0, "sampled", at=at)
    profile.succeeded(None, 1.0, "", at=300.0)
    assert (profile.first_at, profile.last_at) == (100.0, 200.0)


@pytest.mark.parametrize(
    ("peaks", "ratio"),
    [
        ((), None),
        ((3000,), None),
        ((1000, 1300, 1000), None),
        ((1000, 1000, 1310), 1.31),
        ((1000, 3000), 1.5),
        ((1000, 1000, 1000, 3000, 3000), 3.0),
    ],
)
def test_two_sizes_under_one_name_are_noticed(peaks: tuple[int, ...], ratio: float | None) -> None:
    """A largest peak of more than 1.3 times the median looks like two kinds of run."""
    assert _profile(*peaks).differs == ratio


# -- all profiles together --------------------------------------------------------------------------


def test_the_store_gives_back_what_it_was_given() -> None:
    """A profile survives the way to the store and back, and newer fields do not break it."""
    profile = _profile(3000, 2000)
    profile.failed("oom", 2.0, oom_at_mib=3000)
    profile.succeeded(4000, 1.0, "accounting", at=7.0, censored=True)
    record = {**to_record(profile), "from_the_future": 1}
    travelled = decode(encode(record)[4:])
    travelled["window"] = [[*entry, "more"] for entry in travelled["window"]]
    assert from_record("job", "m", travelled) == profile


def test_profiles_of_an_older_version_are_read() -> None:
    """Plain numbers with one source for all of them become peaks of that source."""
    old = {"peaks": [3000, 2000], "source": "device-delta", "runs": 2, "raised_mib": 0}
    profile = from_record("job", "m", old)
    assert profile.window == [Peak(3000, "device-delta"), Peak(2000, "device-delta")]
    assert (profile.runs, profile.source) == (2, "device-delta")
    assert from_record("job", "m", {"peaks": [], "source": None, "set_mib": 5}).set_mib == 5


def test_the_book_stays_within_its_limit() -> None:
    """Ten thousand types that never repeat leave no more than the limit."""
    book = ProfileBook(EXACT, limit=50)
    for n in range(10_000):
        book.of(f"train --seed {n}", "m").succeeded(None, 0.0, "sampled")
    assert len(book) == 50


def test_a_sweep_does_not_push_out_what_was_learnt() -> None:
    """Types about which nothing is known go first."""
    book = ProfileBook(EXACT, limit=50)
    book.of("known", "m").succeeded(3000, 1.0, "sampled")
    for n in range(200):
        book.of(f"train --seed {n}", "m")
    assert book.estimate_mib("known", "m", factor=1.0) == 3000


def test_a_full_book_of_known_types_still_takes_a_new_one() -> None:
    """The newest type is learnt even if all older ones are known; the oldest goes."""
    book = ProfileBook(EXACT, limit=3)
    for name in "abcd":
        book.of(name, "m").succeeded(1000, 1.0, "sampled")
    assert book.estimate_mib("d", "m", factor=1.0) == 1000
    assert book.estimate_mib("a", "m", factor=1.0) is None


def test_the_oldest_known_type_goes_first() -> None:
    """Of known types the one that was not used for longest is dropped."""
    book = ProfileBook(EXACT, limit=2)
    for name in "abac":
        book.of(name, "m").succeeded(1000, 1.0, "sampled")
    assert {profile.type for profile in book.all()} == {"a", "c"}


def test_what_one_model_taught_helps_on_another() -> None:
    """Another model's peak is taken with a factor; the model's own peak outranks it."""
    book = ProfileBook(EXACT)
    book.of("job", "A").succeeded(1001, 1.0, "sampled")
    assert book.estimate_mib("job", "B", factor=1.1) == 1102
    book.of("job", "B").succeeded(500, 1.0, "sampled")
    assert book.estimate_mib("job", "B", factor=1.1) == 500


def test_forgetting_is_complete() -> None:
    """A forgotten type is unknown, on one model or on all."""
    book = ProfileBook(EXACT)
    for model in "AB":
        book.of("job", model).succeeded(1000, 1.0, "sampled")
    assert book.forget("job", "A") == 1
    assert book.find("job", "A") is None
    assert book.forget("job") == 1
    assert book.forget("job") == 0
    assert not book.all()


def test_a_type_that_was_dropped_from_memory_is_recalled() -> None:
    """What a store knows counts on, however long a type was not asked for."""
    kept = Profile("a", "m", window=[Peak(3000)], runs=1)
    asked: list[str] = []

    def recall(job_type: str) -> list[Profile]:
        asked.append(job_type)
        return [kept] if job_type == "a" else []

    book = ProfileBook(EXACT, limit=2, recall=recall)
    assert book.estimate_mib("a", "m", factor=1.1) == 3000
    book.of("b", "m").set_mib = 1000
    book.of("c", "m").set_mib = 1000
    book.of("a", "m").succeeded(2000, 1.0, "sampled")
    assert kept.peaks == [3000, 2000]
    assert asked == ["a", "b", "c", "a"]

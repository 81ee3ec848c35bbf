"""The text that describes simulated devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.devices.simspec import Foreign, SimCard, SimSpec, parse_spec
from grn.errors import UsageError


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("sim:4x16GiB", [16384] * 4),
        ("sim:2x24GiB,1x80GiB", [24576, 24576, 81920]),
        ("1x8113", [8113]),
        (" sim: 1x1.5GiB , 1x512M ", [1536, 512]),
    ],
)
def test_groups_of_cards_are_read_in_order(text: str, sizes: list[int]) -> None:
    """Cards are numbered as they are written."""
    assert [card.total_mib for card in parse_spec(text).cards] == sizes


def test_every_option_is_read() -> None:
    """Each option sets its own field and no other."""
    spec = parse_spec(
        "sim:2x80GiB,mig=0:20GiB+40GiB,meter=rss,dir=/tmp/x,model=Toy 80G,mode=1:exclusive,"
        "reserve=1GiB,foreign=1:18GiB,foreign=0.1:1GiB,lost=1,procs=no,totals=no,slow=0.2,speed=1:2,"
        "link=0-1:nvlink"
    )
    assert spec == SimSpec(
        (
            SimCard(81920, slices=(20480, 40960)),
            SimCard(81920, mode="exclusive", speed=2.0, lost=True),
        ),
        meter="rss",
        directory="/tmp/x",  # noqa: S108 - a text, not a file
        model="Toy 80G",
        reserve_mib=1024,
        foreign=(Foreign(1, 18432), Foreign(0, 1024, 1)),
        shows_processes=False,
        shows_used=False,
        slow_s=0.2,
        links=((0, 1, 0),),
    )


def test_an_order_makes_the_first_card_the_fastest() -> None:
    """`order=fastest:…` takes commas of its own and ends at the next option."""
    spec = parse_spec("sim:3x8GiB,order=fastest:1,2,0,slow=1")
    assert [card.speed for card in spec.cards] == [1, 3, 2]
    assert spec.slow_s == 1


def test_a_slice_may_be_used_before_it_is_made() -> None:
    """The order of options has no meaning."""
    before = parse_spec("sim:foreign=0.0:1GiB,1x8GiB,mig=0:4GiB")
    assert before == parse_spec("sim:1x8GiB,mig=0:4GiB,foreign=0.0:1GiB")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("sim:", "names no card"),
        ("sim:meter=rss", "names no card"),
        ("sim:16GiB", "'16GiB'"),
        ("sim:0x16GiB", "'0x16GiB'"),
        ("sim:-1x16GiB", "'-1x16GiB'"),
        ("sim:4x", "'4x' has no size"),
        ("sim:4xlots", "'lots'"),
        ("sim:4x0", "'0'"),
        ("sim:9999x1GiB", "'9999x1GiB'"),
        ("sim:40x1GiB,40x2GiB", "80 cards"),
        ("sim:1x8GiB,", "''"),
        ("sim:1x8GiB,colour=red", "'colour=red'"),
        ("sim:1x8GiB,meter=guess", "'meter=guess'"),
        ("sim:1x8GiB,meter=rss,meter=rss", "given twice"),
        ("sim:1x8GiB,mode=shared", "'mode=shared'"),
        ("sim:1x8GiB,mode=4:exclusive", "'4' is no card"),
        ("sim:1x8GiB,dir=here", "absolute"),
        ("sim:1x8GiB,model=", "'model='"),
        ('sim:1x8GiB,model=a"b', "plain text"),
        ("sim:1x8GiB,reserve=8GiB", "nothing would be left"),
        ("sim:1x8GiB,foreign=2GiB", "no colon"),
        ("sim:1x8GiB,foreign=1:2GiB", "numbered 0 to 0"),
        ("sim:1x8GiB,foreign=0:9GiB", "9216 MiB on a device of 8192 MiB"),
        ("sim:1x8GiB,foreign=0.0:1GiB", "0 slices"),
        ("sim:1x8GiB,mig=0:4GiB,foreign=0:1GiB", "1 slices"),
        ("sim:1x8GiB,mig=0:4GiB+5GiB", "9216 MiB of slices"),
        ("sim:1x8GiB,mig=0:4GiB,mig=0:4GiB", "divided twice"),
        ("sim:1x8GiB,lost=one", "'one' is no card"),
        ("sim:1x8GiB,procs=maybe", "no or yes"),
        ("sim:1x8GiB,slow=nan", "'nan'"),
        ("sim:1x8GiB,speed=0:-1", "'-1'"),
        ("sim:2x8GiB,order=slowest:0,1", "fastest"),
        ("sim:2x8GiB,order=fastest:0,0", "named twice"),
        ("sim:2x8GiB,link=0-1", "no colon"),
        ("sim:2x8GiB,link=0:20", "numbered 0 to 1"),
        ("sim:2x8GiB,link=0-2:20", "'2' is no card"),
        ("sim:2x8GiB,link=1-1:20", "not linked to itself"),
        ("sim:2x8GiB,link=0-1:near", "'near' is not one of: nvlink, 10"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, part: str) -> None:
    """A malformed description is refused with the part that is wrong."""
    with pytest.raises(UsageError) as caught:
        parse_spec(text)
    assert part in caught.value.message


sizes = st.integers(1, 2**21)
names = st.text("abcXYZ 0123-_/", min_size=1).map(str.strip).filter(bool)


@st.composite
def machines(draw: st.DrawFn) -> SimSpec:
    """Any machine that a description can name."""
    cards: list[SimCard] = []
    for total in draw(st.lists(sizes, min_size=1, max_size=5)):
        parts = draw(st.integers(0, 3))
        cards.append(
            SimCard(
                total,
                mode=draw(st.sampled_from(["default", "exclusive", "prohibited"])),
                speed=draw(st.floats(0, 1e6)),
                lost=draw(st.booleans()),
                slices=(total // parts,) * parts if parts and total >= parts else (),
            )
        )
    foreign: list[Foreign] = []
    for index in draw(st.lists(st.integers(0, len(cards) - 1), max_size=3)):
        card = cards[index]
        which = draw(st.integers(0, len(card.slices) - 1)) if card.slices else None
        limit = card.total_mib if which is None else card.slices[which]
        foreign.append(Foreign(index, draw(st.integers(0, limit)), which))
    return SimSpec(
        tuple(cards),
        meter=draw(st.sampled_from(["device", "rss"])),
        directory=draw(st.none() | st.just("/a/b c")),
        model=draw(st.none() | names),
        reserve_mib=draw(st.integers(0, min(card.total_mib for card in cards) - 1)),
        foreign=tuple(foreign),
        links=tuple(
            (0, other, draw(st.sampled_from((0, 10, 20, 30, 40, 50))))
            for other in range(1, len(cards))
            if draw(st.booleans())
        ),
        shows_processes=draw(st.booleans()),
        shows_used=draw(st.booleans()),
        slow_s=draw(st.floats(0, 100)),
    )


@given(machines())
def test_the_canonical_text_means_the_same_machine(spec: SimSpec) -> None:
    """What is rendered reads back as the very same machine, and renders alike again."""
    text = spec.canonical()
    assert parse_spec(text) == spec
    assert parse_spec(text).canonical() == text


def test_the_canonical_text_is_what_people_write() -> None:
    """Equal cards are one group and sizes keep their unit."""
    written = "sim:2x24GiB,1x80GiB,mode=exclusive,meter=rss"
    assert parse_spec(f"{written},totals=yes").canonical() == written

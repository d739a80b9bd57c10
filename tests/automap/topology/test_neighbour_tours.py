"""Tours of grids beside a search of all of them."""

from itertools import product
from math import prod

from hypothesis import given, settings, strategies as st
import pytest

from automap.topology.device_order import Side, is_round, neighbour_tour, to_and_fro


@st.composite
def grids(draw, most=300):
    """Sides of a grid, innermost first; a side closes from three places on."""
    sides = []
    for _ in range(draw(st.integers(0, 4))):
        size = draw(st.integers(1, 9))
        if prod(side.size for side in sides) * size <= most:
            sides.append(Side(size, size > 2 and draw(st.booleans())))
    return sides


def coordinates(sides, place):
    found = []
    for side in sides:
        found.append(place % side.size)
        place //= side.size
    return found


def links_between(sides, one, other):
    total = 0
    for side, a, b in zip(sides, coordinates(sides, one), coordinates(sides, other), strict=True):
        ahead = abs(a - b)
        total += min(ahead, side.size - ahead) if side.closes else ahead
    return total


def has_round_tour(sides):
    """Whether any order of all places goes from neighbour to neighbour, by trying all of them."""
    count = prod(side.size for side in sides)
    near = {
        place: [other for other in range(count) if links_between(sides, place, other) == 1]
        for place in range(count)
    }

    def goes_on(here, visited):
        if len(visited) == count:
            return 0 in near[here] or count == 1
        return any(goes_on(n, visited | {n}) for n in near[here] if n not in visited)

    return goes_on(0, frozenset((0,)))


@settings(deadline=None)
@given(grids())
def test_a_tour_comes_to_every_place_and_goes_to_neighbours(sides):
    tour = neighbour_tour(sides)
    assert sorted(tour) == list(range(prod(side.size for side in sides)))
    steps = [links_between(sides, a, b) for a, b in zip(tour, tour[1:], strict=False)]
    assert set(steps) <= {1}
    back = links_between(sides, tour[-1], tour[0])
    if is_round(sides):
        assert back <= 1
    elif sum(side.size > 1 for side in sides) > 1:
        assert back == 2


SMALL = [
    [Side(size, closes) for size, closes in zip(sizes, closing, strict=True)]
    for count in (1, 2, 3)
    for sizes in product(range(1, 6), repeat=count)
    if prod(sizes) <= 15
    for closing in product((False, True), repeat=count)
    if all(size > 2 or not closes for size, closes in zip(sizes, closing, strict=True))
]


@pytest.mark.parametrize("first", range(8))
def test_there_is_a_round_tour_exactly_where_it_is_said(first):
    for sides in SMALL[first::8]:
        assert is_round(sides) == has_round_tour(sides), sides


def test_no_tour_of_an_odd_grid_is_shorter():
    """Every order of 3x3 places: the steps of the best tour are one link, and one of two."""
    sides = [Side(3), Side(3)]

    def least(here, left, longest):
        if not left:
            return max(longest, links_between(sides, here, 0))
        steps = ((links_between(sides, here, n), n) for n in left)
        return min(
            (least(n, left - {n}, max(longest, far)) for far, n in steps if far <= 2), default=9
        )

    assert least(0, frozenset(range(1, 9)), 0) == 2


def test_known_tours():
    assert neighbour_tour([Side(4), Side(2)]) == (0, 4, 5, 6, 7, 3, 2, 1)
    assert neighbour_tour([Side(5)]) == (0, 1, 2, 3, 4)
    assert neighbour_tour([]) == (0,)
    assert to_and_fro("ab", 3) == [0, 1, 1, 0, 0, 1]

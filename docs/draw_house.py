"""Draws the rooms of the package and their imports into docs/images/house.svg: `make house`.

A room is above all rooms that it imports from. A line is an import, the wider the more names it brings. Nearly every
room imports from `errors` and `_plain`, so these lines are left out. An import upward or past a door is an error.
"""

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

import test_rooms as house  # noqa: E402 (the table of rooms and doors is that of the test)

OUT = ROOT / "docs" / "images" / "house.svg"
ENTRANCES = {"__main__", "whyformer"}  # they import everything, and are not drawn
GROUND = {"errors", "_plain"}
WIDTH, BOX, ROW, EDGE = 1200, 34, 78, 40
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1b1b1f; text-anchor: middle; dominant-baseline: central }
rect { fill: #f4f4f7; stroke: #73737f }
rect.engine { fill: #e3ecfa; stroke: #3b6cb5 }
path { fill: none; stroke: #73737f; stroke-opacity: .4 }
path.engine { stroke: #3b6cb5 }
@media (prefers-color-scheme: dark) {
  text { fill: #ececf1 }
  rect { fill: #26262c; stroke: #9a9aa6 }
  rect.engine { fill: #1c2c45; stroke: #7ea9e8 }
  path { stroke: #9a9aa6 }
  path.engine { stroke: #7ea9e8 }
}
"""


def find_imports() -> dict[tuple[str, str], set[str]]:
    """(room that imports, room imported from) -> the names."""
    found = defaultdict(set)
    for file, tree in house.trees.items():
        own = house.room_of(house.module_of(file))
        for node in house.ast.walk(tree):
            for name in filter(house.is_ours, house.imported_names(node)):
                room = house.room_of(house.inside_house(name))
                if room != own and not {room, own} & ENTRANCES:
                    found[own, room].add(name)
    return found


def find_levels(rooms: set[str], imports: dict[tuple[str, str], set[str]]) -> dict[str, int]:
    """The length of the longest chain of imports below each room; a room on a cycle has none."""
    levels: dict[str, int] = {}
    while len(levels) < len(rooms):
        ready = {
            room for room in rooms - levels.keys() if all(b in levels for a, b in imports if a == room and b in rooms)
        }
        if not ready:
            raise SystemExit(f"These rooms import each other: {', '.join(sorted(rooms - levels.keys()))}")
        for room in ready:
            levels[room] = max((levels[b] + 1 for a, b in imports if a == room and b in rooms), default=0)
    return levels


def place_boxes(levels: dict[str, int]) -> dict[str, tuple[float, float, float]]:
    """Room -> left, top and width of its box; the highest level first."""
    boxes = {}
    for row, level in enumerate(sorted(set(levels.values()), reverse=True)):
        rooms = sorted(room for room in levels if levels[room] == level)
        width = min(150.0, (WIDTH - 2 * EDGE) / len(rooms) - 16)
        for index, room in enumerate(rooms):
            centre = EDGE + (WIDTH - 2 * EDGE) * (index + 0.5 + 0.13 * (row % 2 * 2 - 1)) / len(rooms)
            boxes[room] = centre - width / 2, EDGE + row * ROW, width
    return boxes


def draw_line(a: tuple[float, float, float], b: tuple[float, float, float], names: int, kind: str, pair: str) -> str:
    x1, y1, x2, y2 = a[0] + a[2] / 2, a[1] + BOX, b[0] + b[2] / 2, b[1]
    middle = (y1 + y2) / 2
    line = f'<path class="{kind}" d="M{x1:.0f} {y1} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2}"'
    return f'{line} stroke-width="{1 + names**0.5 / 3:.1f}"><title>{pair}: {names}</title></path>'


def draw() -> str:
    imports = find_imports()
    rooms = {room for pair in imports for room in pair}
    boxes = place_boxes(find_levels(rooms, imports))
    past = {name for (importer, _), names in imports.items() for name in find_past(names, importer)}
    if wrong := past | {f"{a} -> {b}" for a, b in imports if b not in house.ROOMS[a]}:
        raise SystemExit("Imports upward or past a door:\n" + "\n".join(sorted(wrong)))
    lines = [
        draw_line(boxes[a], boxes[b], len(names), "engine" if b.startswith("_engine") else "plain", f"{a} from {b}")
        for (a, b), names in sorted(imports.items())
        if b not in GROUND
    ]
    height = max(top for _, top, _ in boxes.values()) + BOX + EDGE
    drawn = [
        f'<rect class="{"engine" if room.startswith("_engine") else "room"}" x="{x:.0f}" y="{y}" width="{w:.0f}" '
        f'height="{BOX}" rx="5"/><text x="{x + w / 2:.0f}" y="{y + BOX / 2}">{room.removeprefix("_engine.")}</text>'
        for room, (x, y, w) in sorted(boxes.items())
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    title = "<title>The rooms of whyformer: lines are imports, from a room to one below it; blue is the engine</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *lines, *drawn, "</svg>"]) + "\n"


def find_past(names: set[str], importer: str) -> set[str]:
    """Names that did not come through the door of the room that they are in."""
    ours = {house.inside_house(name) for name in names}
    rooms = [door for door in house.DOORS if not house.is_inside(importer, door)]
    rooms = [door for door in rooms if door != "_engine" or not house.is_inside(importer, house.BUILT_OF_THE_ENGINE)]
    return {
        name
        for name in ours
        if any(house.is_inside(name, room) for room in rooms)
        and not (house.is_at_a_door(name) or house.is_shown(importer, name))
    }


if __name__ == "__main__":
    OUT.write_text(draw())
    print(OUT.relative_to(ROOT))

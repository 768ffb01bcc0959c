"""The words and sentences of the reader's world: who and what its passages are about, and what they can say of it.

A `Topic` is a kind of thing that a passage is about. Each of its clauses says one or two things of it; a {slot} is a
relation of the table `RELATIONS`, which has the questions that ask for it.
"""

from dataclasses import dataclass

NAMES = """
    Anna Berta Clara Dora Emma Fiona Greta Hanna Irene Julia Karla Laura Maria Nora Olga Paula Rosa Sarah Adam Boris
    Carl David Emil Felix Georg Hugo Ivan Jonas Karim Leo Martin Nils Oscar Peter Robin Simon
""".split()
CITIES = """
    Athens Bergen Cairo Delhi Essen Florence Geneva Hamburg Istanbul Jakarta Krakow Lisbon Madrid Naples Oslo Porto
    Quito Riga Seville Tunis Utrecht Vienna Warsaw York Zagreb Dublin Kyoto Lima Nantes Bristol Turin Malaga
""".split()
THINGS = """
    lamp clock chair basket mirror kettle carpet bicycle suitcase teapot vase blanket ladder coat desk hammock
    telescope saddle bench radio
""".split()
GOODS = """
    tea coffee salt timber wool copper olives rice sugar paper glass silk honey cheese soap candles spices cotton
    pepper marble
""".split()
MONTHS = "January February March April May June July August September October November December".split()
SHIPS = """
    Aurora Beatrix Corona Dolphin Esperanza Fortuna Gloria Horizon Iris Juno Kestrel Lydia Meridian Neptune Orion
    Pelican Queen Rosalie Swallow Triton Ursula Victoria
""".split()
FAIRS = "lantern harvest winter spring flower book wine kite mask boat summer apple".split()
GATHERINGS = "fair festival market".split()
MATERIALS = "bronze ivory jade crystal oak amber iron pearl clay stone".split()
EXHIBITS = "crown bowl statue sword necklace goblet shield ring chest globe".split()
ROOMS = "hall gallery wing cellar tower garden".split()
HOUSES = """
    Alder Birch Cedar Falcon Granite Heron Juniper Laurel Maple Otter Poplar Raven Sparrow Thistle Walnut Willow
""".split()
TRADES = "mill bakery workshop store brewery inn".split()
SUBJECTS = {  # of each topic: the words that its name is made of
    "ship": (SHIPS,),
    "fair": (FAIRS, GATHERINGS),
    "exhibit": (MATERIALS, EXHIBITS),
    "house": (HOUSES, TRADES),
}
NUMBERS = tuple(str(number) for number in range(30, 100))
YEARS = tuple(str(year) for year in range(1801, 2000, 3))


@dataclass(frozen=True)
class Relation:
    """What can be known of a topic: the kind of value, and the questions that ask for it."""

    value: str  # a key of VALUES, or "person"
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Topic:
    """A kind of thing that passages are about."""

    pronouns: tuple[str, ...]
    clauses: tuple[tuple[str, ...], ...]  # each a choice of wordings for the same relations


VALUES: dict[str, tuple[str, ...]] = {
    "city": tuple(CITIES),
    "thing": tuple(THINGS),
    "goods": tuple(GOODS),
    "price": tuple(f"{number} euros" for number in NUMBERS),
    "month": tuple(MONTHS),
    "number": NUMBERS,
    "year": YEARS,
    "room": tuple(ROOMS),
}

RELATIONS: dict[str, Relation] = {
    "captain": Relation("person", ("Who is the captain of {S}?", "Who leads {S}?")),
    "cargo": Relation("goods", ("What does {S} carry?", "What is the cargo of {S}?")),
    "port": Relation("city", ("Where did {S} sail from?", "Which port did {S} sail from?")),
    "departure": Relation("month", ("When did {S} leave?", "When did {S} set sail?")),
    "crew": Relation("number", ("How large is the crew of {S}?", "How many sailors does {S} need?")),
    "place": Relation("city", ("Where does {S} take place?", "In which city is {S} held?")),
    "opening": Relation("month", ("When does {S} open?", "When does {S} begin?")),
    "ticket": Relation("price", ("How much is a ticket for {S}?", "What does {S} cost?")),
    "host": Relation("person", ("Who is the host of {S}?", "Who hosts {S}?")),
    "prize": Relation("thing", ("What is the prize at {S}?", "What does the winner of {S} get?")),
    "room": Relation("room", ("Where is {S} kept?", "In which room is {S}?")),
    "made": Relation("year", ("When was {S} made?", "From which year is {S}?")),
    "worth": Relation("price", ("How much is {S} worth?", "What is the value of {S}?")),
    "maker": Relation("person", ("Who is the maker of {S}?", "Who made {S}?")),
    "found": Relation("city", ("Where was {S} found?", "In which city was {S} found?")),
    "owner": Relation("person", ("Who is the owner of {S}?", "Who runs {S}?")),
    "seat": Relation("city", ("Where is {S} based?", "In which city is {S} based?")),
    "product": Relation("goods", ("What does {S} sell?", "What is {S} known for?")),
    "founded": Relation("year", ("When was {S} founded?", "In which year was {S} founded?")),
    "staff": Relation("number", ("How many people does {S} employ?", "How many people work for {S}?")),
}

TOPICS: dict[str, Topic] = {
    "ship": Topic(
        ("It", "The ship"),
        (
            ("sails under captain {captain}", "has a captain called {captain}", "obeys captain {captain}"),
            ("carries {cargo}", "is loaded with {cargo}", "brings {cargo} to the islands"),
            ("sailed from {port}", "started its voyage in {port}", "came out of the harbour of {port}"),
            ("left in {departure}", "set sail in {departure}"),
            ("has a crew of {crew}", "needs {crew} sailors"),
        ),
    ),
    "fair": Topic(
        ("It", "The event"),
        (
            ("takes place in {place}", "is held in {place}", "fills the streets of {place}"),
            ("opens in {opening}", "begins in {opening}"),
            ("sells tickets for {ticket}", "asks {ticket} for a ticket", "costs {ticket} at the door"),
            ("is hosted by {host}", "was planned by {host}", "has a host called {host}"),
            ("gives a {prize} to the winner", "offers a {prize} as the prize"),
        ),
    ),
    "exhibit": Topic(
        ("It", "The piece"),
        (
            ("is kept in the {room}", "can be seen in the {room}", "has its place in the {room}"),
            ("was made in {made}", "dates from {made}"),
            ("is worth {worth}", "is valued at {worth}", "has a value of {worth}"),
            ("is the work of {maker}", "was made by {maker}"),
            ("was found in {found}", "was dug up near {found}"),
        ),
    ),
    "house": Topic(
        ("It", "The house"),
        (
            ("belongs to {owner}", "is run by {owner}", "has an owner called {owner}"),
            ("is based in {seat}", "has its rooms in {seat}"),
            ("sells {product}", "is known for its {product}"),
            ("was founded in {founded}", "opened its doors in {founded}"),
            ("employs {staff} people", "gives work to {staff} people"),
        ),
    ),
}

OPENINGS = ("These days", "As everybody knows", "For some time now", "In the end", "According to the papers")
FILLERS = (
    "There is much to tell about this.",
    "Not everybody knows that.",
    "So it was in the news.",
    "Little else is known.",
    "People talk about it now and then.",
)
SYSTEM_PROMPTS = ("Answer from the passages.", "You answer questions about passages. Be brief.", "Read, then answer.")

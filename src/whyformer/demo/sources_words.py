"""The words of the two worlds of `whyformer.demo.sources`: what their passages are about, and what they can say of it.

`HARBOUR` is the reader's world (`reader_words`) and its people; limits are chosen on it. `VALLEY` has other things,
other words and other sentences, in which the value may come before the subject; limits are tested on it. In a wording
{S} is the subject, by default in front, and any other {slot} is a relation of the world.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from whyformer.demo.reader_words import NAMES, NUMBERS, RELATIONS, SUBJECTS, TOPICS, VALUES, Relation, Topic


@dataclass(frozen=True, eq=False)
class World:
    """Things and people, what can be stated of them, and how it is asked for."""

    name: str
    people: tuple[str, ...]
    subjects: Mapping[str, tuple[list[str], ...]]  # of each topic but "person": the words that its name is made of
    bare: frozenset[str]  # topics whose subjects have no article
    topics: Mapping[str, Topic]
    relations: Mapping[str, Relation]
    values: Mapping[str, tuple[str, ...]]  # by kind of value; people are a kind too
    roles: Mapping[str, str]  # relations to a person, as what that person is called: "the captain of {S}"
    coarser: Mapping[str, Mapping[str, str]]  # by kind of value: what every value is one of
    coarse_questions: Mapping[str, str]  # by relation: the question for what its value is one of


def invert(groups: Mapping[str, str]) -> dict[str, str]:
    """Member -> group, from group -> its members, separated by blanks."""
    return {member: group for group, members in groups.items() for member in members.split()}


# --- the harbour ------------------------------------------------------------------------------------------------------

COUNTRIES = invert(
    {
        "Greece": "Athens", "Norway": "Bergen Oslo", "Egypt": "Cairo", "India": "Delhi", "Germany": "Essen Hamburg",
        "Italy": "Florence Naples Turin", "Switzerland": "Geneva", "Turkey": "Istanbul", "Indonesia": "Jakarta",
        "Poland": "Krakow Warsaw", "Portugal": "Lisbon Porto", "Spain": "Madrid Seville Malaga", "Ecuador": "Quito",
        "Latvia": "Riga", "Tunisia": "Tunis", "Holland": "Utrecht", "Austria": "Vienna", "England": "York Bristol",
        "Croatia": "Zagreb", "Ireland": "Dublin", "Japan": "Kyoto", "Peru": "Lima", "France": "Nantes",
    }
)  # fmt: skip
SEASONS = invert(
    {
        "winter": "December January February",
        "spring": "March April May",
        "summer": "June July August",
        "autumn": "September October November",
    }
)
ASSORTMENTS = invert(
    {
        "drinks": "tea coffee",
        "food": "olives rice sugar honey cheese",
        "seasoning": "salt spices pepper",
        "materials": "timber copper marble paper glass",
        "fabrics": "wool silk cotton",
        "toiletries": "soap candles",
    }
)
PETS = tuple("dog cat parrot goat rabbit donkey turtle pony goose hamster".split())
INSTRUMENTS = tuple("piano violin flute guitar harp drum trumpet cello organ banjo".split())
HARBOUR = World(
    name="harbour",
    people=tuple(NAMES),
    subjects=SUBJECTS,
    bare=frozenset({"person"}),
    topics={
        **TOPICS,
        "person": Topic(
            (),
            (
                ("lives in {home}", "has a flat in {home}", "moved to {home} long ago"),
                ("was born in {born}", "came into the world in {born}"),
                ("keeps a {pet}", "has a {pet} at home"),
                ("plays the {instrument}", "is heard on the {instrument}"),
            ),
        ),
    },
    relations={
        **RELATIONS,
        "home": Relation("city", ("Where does {S} live?", "In which city does {S} live?")),
        "born": Relation("year", ("When was {S} born?", "What is the year of birth of {S}?")),
        "pet": Relation("pet", ("Which pet does {S} keep?", "What animal does {S} have?")),
        "instrument": Relation("instrument", ("What does {S} play?", "Which instrument does {S} play?")),
    },
    values={**VALUES, "person": tuple(NAMES), "pet": PETS, "instrument": INSTRUMENTS},
    roles={
        "captain": "the captain of {S}", "host": "the host of {S}", "maker": "the maker of {S}",
        "owner": "the owner of {S}",
    },
    coarser={"city": COUNTRIES, "month": SEASONS, "goods": ASSORTMENTS},
    coarse_questions={
        "port": "Which country did {S} sail from?",
        "place": "In which country is {S} held?",
        "found": "In which country was {S} found?",
        "seat": "In which country is {S} based?",
        "home": "In which country does {S} live?",
        "departure": "In which season did {S} leave?",
        "opening": "In which season does {S} begin?",
        "cargo": "What kind of goods does {S} carry?",
        "product": "What kind of goods does {S} sell?",
    },
)  # fmt: skip

# --- the valley -------------------------------------------------------------------------------------------------------

VILLAGERS = tuple(
    """
    Abel Bruno Cosmo Darius Edgar Fabian Gustav Henrik Igor Joel Kaspar Lorenz Marek Norbert Otto Pablo Quentin Ralf
    Agnes Bianca Celia Delia Edith Flora Gilda Helga Ingrid Judith Katja Lena Mona Nadia Odile Petra
    """.split()
)
VILLAGES = """
    Altdorf Brackwell Cranleigh Dornbach Elmstead Farnham Glenmore Hollen Inverness Jarrow Kirkby Langley Milford
    Norwick Oakham Penrith Redmoor Selkirk Tarbert Upwell Wexford Yarm
""".split()
PROBES = "Ceres Dione Elara Gaia Halley Io Kepler Leda Mira Newton Pallas Rhea Sirius Tethys Vega Vesta".split()
FILMS = "Midnight Harvestmoon Lighthouse Snowfall Crossroads Daybreak Embers Frostbite Gravity Homeward".split()
CLUBS = "Badgers Cobras Eagles Foxes Hornets Jackals Lynxes Mustangs Panthers Rams Sharks Tigers Wolves".split()
ANIMALS = invert(
    {"birds": "owls herons larks storks", "fish": "trout carp eels perch", "mammals": "deer hares beavers otters"}
)
COLOURS = tuple("red green blue yellow purple orange grey brown white black".split())
RIVERS = tuple("Aller Bode Drava Eider Fulda Glomma Havel Inn Lech Mosel Neckar Oder Rhine Saale Tagus Weser".split())
TARGETS = invert(
    {"planets": "Mars Venus Saturn Uranus Mercury", "moons": "Titan Europa Phobos Triton", "comets": "Encke Borrelly"}
)
FUELS = tuple("hydrogen methane xenon argon krypton ethanol".split())
LANGUAGES = tuple("French Danish Greek Hindi Polish Latin Welsh Arabic Swedish Basque".split())
SPORTS = invert(
    {"ball games": "tennis rugby hockey cricket", "races": "rowing cycling sailing", "fights": "judo fencing boxing"}
)
WEEKDAYS = invert({"weekend": "Saturday Sunday", "week": "Monday Tuesday Wednesday Thursday Friday"})
STREETS = tuple("Abbey Bridge Castle Chapel Forge Garden Market Orchard Station Temple".split())
VALLEY = World(
    name="valley",
    people=VILLAGERS,
    subjects={
        "village": (VILLAGES,),
        "probe": (PROBES,),
        "film": (FILMS,),
        "club": (CLUBS,),
    },
    bare=frozenset({"person", "village", "probe", "film"}),
    topics={
        "village": Topic(
            (),
            (
                ("The mayor of {S} is {mayor}", "{mayor} is in charge of {S}", "They chose {mayor} as mayor in {S}"),
                ("The river {river} runs past {S}", "{S} looks down on the river {river}"),
                ("Visitors come to {S} to watch {animals}", "{S} has many {animals}"),
                ("Every {marketday} there is a fair in {S}", "{S} fills with carts each {marketday}"),
                ("About {inhabitants} people live in {S}", "{S} counts {inhabitants} inhabitants"),
            ),
        ),
        "probe": Topic(
            (),
            (
                ("It was {pilot} who flew {S}", "{pilot} steers {S} from the ground", "{S} listens to {pilot}"),
                ("Course for {target} was set by {S}", "{S} travels to {target}", "Pictures of {target} come from {S}"),
                ("Tanks of {fuel} drive {S}", "{S} burns {fuel}"),
                ("With {weight} tons {S} is heavy", "{S} weighs {weight} tons"),
            ),
        ),
        "film": Topic(
            (),
            (
                ("Behind the camera of {S} stood {director}", "{director} directed {S}"),
                ("People in {S} speak {tongue}", "{S} was shot in {tongue}"),
                ("Cinemas show {S} on {screening}", "{S} runs on {screening}"),
                ("It takes {minutes} minutes to see {S}", "{S} lasts {minutes} minutes"),
            ),
        ),
        "club": Topic(
            (),
            (
                ("Training of {S} is the job of {coach}", "{coach} coaches {S}", "{S} trust {coach} as coach"),
                ("Fans of {S} wear {colour}", "{S} dress in {colour}"),
                ("The sport of {S} is {sport}", "{S} are a team for {sport}", "In {sport} few beat {S}"),
                ("Practice of {S} is on {practice}", "On {practice} one meets {S}"),
            ),
        ),
        "person": Topic(
            (),
            (
                ("The house of {S} is in {street} street", "{S} rents rooms in {street} street"),
                ("At home {S} talks in {mother}", "{mother} is what {S} grew up with"),
                ("On the wall of {S} all is {favourite}", "{S} likes things that are {favourite}"),
                ("Long walks along the {holiday} please {S}", "{S} spends the holidays by the {holiday}"),
            ),
        ),
    },
    relations={
        "mayor": Relation("person", ("Who governs {S}?", "Who is the mayor of {S}?")),
        "river": Relation("river", ("Which river is near {S}?", "What flows by {S}?")),
        "animals": Relation("animals", ("What can be seen in {S}?", "Which creatures live near {S}?")),
        "marketday": Relation("weekday", ("On which day does {S} trade?", "When is the market of {S}?")),
        "inhabitants": Relation("number", ("How many people inhabit {S}?", "What is the population of {S}?")),
        "pilot": Relation("person", ("Who is the pilot of {S}?", "Who controls {S}?")),
        "target": Relation("target", ("Where does {S} fly?", "What is the goal of {S}?")),
        "fuel": Relation("fuel", ("What does {S} run on?", "Which fuel does {S} use?")),
        "weight": Relation("number", ("How heavy is {S}?", "What is the mass of {S}?")),
        "director": Relation("person", ("Who made the film {S}?", "Who is the director of {S}?")),
        "tongue": Relation("language", ("What is the language of {S}?", "Which language is heard in {S}?")),
        "screening": Relation("weekday", ("On which day can one see {S}?", "When is {S} on?")),
        "minutes": Relation("number", ("How long is {S}?", "What is the length of {S}?")),
        "coach": Relation("person", ("Who prepares {S}?", "Who is the coach of {S}?")),
        "colour": Relation("colour", ("Which colour have {S}?", "What is the colour of {S}?")),
        "sport": Relation("sport", ("Which sport do {S} practise?", "What do {S} do?")),
        "practice": Relation("weekday", ("On which day do {S} meet?", "When do {S} train?")),
        "street": Relation("street", ("What is the address of {S}?", "On which street does {S} reside?")),
        "mother": Relation("language", ("Which language does {S} use?", "What is the mother tongue of {S}?")),
        "favourite": Relation("colour", ("Which colour does {S} prefer?", "What is the favourite colour of {S}?")),
        "holiday": Relation("river", ("Which river does {S} visit?", "Where does {S} go for a rest?")),
    },
    values={
        "person": VILLAGERS, "river": RIVERS, "animals": tuple(ANIMALS), "weekday": tuple(WEEKDAYS), "number": NUMBERS,
        "target": tuple(TARGETS), "fuel": FUELS, "language": LANGUAGES, "colour": COLOURS, "sport": tuple(SPORTS),
        "street": STREETS,
    },
    roles={
        "mayor": "the mayor of {S}", "pilot": "the pilot of {S}", "director": "the director of {S}",
        "coach": "the coach of {S}",
    },
    coarser={"animals": ANIMALS, "target": TARGETS, "sport": SPORTS, "weekday": WEEKDAYS},
    coarse_questions={
        "animals": "What class of creatures lives near {S}?",
        "target": "To what sort of body does {S} fly?",
        "sport": "What sort of sport do {S} practise?",
        "marketday": "In which part of the week does {S} trade?",
        "screening": "In which part of the week is {S} on?",
        "practice": "In which part of the week do {S} train?",
    },
)  # fmt: skip
SOURCE_WORLDS = {world.name: world for world in (HARBOUR, VALLEY)}

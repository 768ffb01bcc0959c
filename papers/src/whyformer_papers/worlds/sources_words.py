"""The words of the worlds of `worlds.sources`: what their passages are about, and what they can say of it.

`HARBOUR` is the reader's world (`reader_words`) and its people. `VALLEY` has other things, other words and other
sentences, in which the value may come before the subject. The rule of verdicts is fitted on these two. `UPLAND` is kept
out of the fit: it has words, sentences and questions of its own, and the tables of verdicts are about it. In a wording
{S} is the subject, by default in front, and any other {slot} is a relation of the world.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from whyformer.demo.reader_words import NAMES, NUMBERS, RELATIONS, SUBJECTS, TOPICS, VALUES, YEARS, Relation, Topic


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
# --- the upland -------------------------------------------------------------------------------------------------------

UPLANDERS = tuple(
    """
    Alma Bela Cyril Dana Elias Frida Gero Hilda Isak Jana Knut Lidia Milo Nelly Orla Piet Renata Sven Tilda Urs Vera
    Willem Xenia Yvonne Zeno Amos Britta Caspar Doris Ernst Gwen Hedda Jorn Kira Ludo Magda
    """.split()
)
FARMS = """
    Ashcombe Briarley Coldwater Dunmore Eastfield Foxhollow Greenacre Highmeadow Ivybrook Knollside Larkrise Mosswood
    Nettlebed Overton Primrose Quarrybank
""".split()
LINES = "Silver Golden Crimson Northern Southern Eastern Western Royal Coastal Alpine Prairie Starlit".split()
CHOIRS = "Jubilate Cantabile Vivace Serenade Madrigal Sonata Allegro Rondo Fugue Nocturne Prelude Adagio".split()
LABORATORIES = "Sigma Lambda Kappa Theta Zeta Gamma Epsilon Omicron Upsilon Tau Rho Phi".split()
CROPS = invert(
    {
        "grain": "barley wheat rye oats maize",
        "fruit": "apples pears plums cherries",
        "vegetables": "carrots leeks onions turnips beans",
    }
)
TREES = invert({"conifers": "spruce larch fir pine yew", "broadleaves": "beech lime rowan hazel maple"})
COMPOSERS = invert(
    {"baroque": "Bach Handel Vivaldi", "classical": "Haydn Mozart Gluck", "romantic": "Brahms Chopin Grieg Liszt Verdi"}
)
METALS = tuple("zinc nickel cobalt tin platinum chromium titanium tungsten".split())
DANCES = tuple("waltz tango polka samba foxtrot bolero rumba mazurka".split())
DISHES = tuple("soup stew pie pancakes dumplings noodles salad omelettes pudding porridge".split())
PROVINCES = tuple("Bavaria Tuscany Provence Galicia Saxony Tyrol Normandy Silesia Flanders Lapland Moravia".split())
UPLAND = World(
    name="upland",
    people=UPLANDERS,
    subjects={
        "farm": (FARMS,),
        "train": (LINES, "express railcar sleeper".split()),
        "choir": (CHOIRS, "choir quartet band".split()),
        "laboratory": (LABORATORIES, "laboratory institute observatory".split()),
    },
    bare=frozenset({"person", "farm"}),
    topics={
        "farm": Topic(
            (),
            (
                ("The fields of {S} were left to {farmer}", "{S} is in the hands of {farmer}", "{farmer} ploughs {S}"),
                ("Sacks of {crop} leave {S}", "It is {crop} that {S} takes to town", "{S} lives on {crop}"),
                ("Round {S} stand rows of {tree}", "Shade comes to {S} from the {tree}"),
                ("Of land {S} owns {acres} acres", "{S} spreads over {acres} acres"),
                ("People have worked at {S} since {settled}", "{S} goes back to {settled}"),
            ),
        ),
        "train": Topic(
            (),
            (
                ("At the controls of {S} sits {driver}", "{driver} brings {S} through the night", "{S} needs {driver}"),
                ("Tickets for {S} say {province}", "Straight to {province} goes {S}", "{S} ends in {province}"),
                ("Hungry people on {S} get {dish}", "There is {dish} for supper on {S}"),
                ("Behind the engine of {S} roll {coaches} coaches", "{S} pulls {coaches} coaches"),
            ),
        ),
        "choir": Topic(
            (),
            (
                ("Under the baton of {leader} stands {S}", "{S} sings for {leader}", "{leader} taught {S} to sing"),
                ("On every programme of {S} is {composer}", "{S} never tires of {composer}"),
                ("Those who hear {S} dance a {dance}", "{S} ends each evening with a {dance}"),
                ("Some {voices} voices make up {S}", "{S} unites {voices} voices"),
            ),
        ),
        "laboratory": Topic(
            (),
            (
                ("The keys of {S} are with {head}", "{S} reports to {head}", "{head} signs every paper of {S}"),
                ("Samples of {metal} fill the shelves of {S}", "{S} melts {metal}", "They study {metal} at {S}"),
                ("The first stone of {S} was laid in {begun}", "{S} has been at work since {begun}"),
                ("Guests from {origin} are often at {S}", "{S} has friends in {origin}"),
            ),
        ),
        "person": Topic(
            (),
            (
                ("For friends {S} cooks {speciality}", "{S} is praised for {speciality}"),
                ("The {step} is what {S} dances best", "{S} shines in the {step}"),
                ("In the garden of {S} grows a {planted}", "{S} once planted a {planted}"),
                ("Relatives of {S} are at home in {kin}", "{S} writes letters to {kin}"),
            ),
        ),
    },
    relations={
        "farmer": Relation("person", ("Who tills {S}?", "Who is the farmer of {S}?")),
        "crop": Relation("crop", ("What is harvested at {S}?", "Which crop does {S} grow?")),
        "tree": Relation("tree", ("Which trees are near {S}?", "What grows beside {S}?")),
        "acres": Relation("number", ("How big is {S}?", "What is the area of {S}?")),
        "settled": Relation("year", ("How old is {S}?", "Since when is there {S}?")),
        "driver": Relation("person", ("Who drives {S}?", "Who is the driver of {S}?")),
        "province": Relation("province", ("Where does {S} go?", "What is the terminus of {S}?")),
        "dish": Relation("dish", ("What can one eat on {S}?", "Which dish does {S} offer?")),
        "coaches": Relation("number", ("How long a train is {S}?", "How many coaches has {S}?")),
        "leader": Relation("person", ("Who conducts {S}?", "Who is the leader of {S}?")),
        "composer": Relation("composer", ("Whose music does {S} perform?", "Which composer does {S} love?")),
        "dance": Relation("dance", ("Which dance is {S} known for?", "What does {S} finish with?")),
        "voices": Relation("number", ("How many singers has {S}?", "What is the size of {S}?")),
        "head": Relation("person", ("Who directs {S}?", "Who is the head of {S}?")),
        "metal": Relation("metal", ("Which metal interests {S}?", "What is the subject of {S}?")),
        "begun": Relation("year", ("When was {S} built?", "From what time is {S}?")),
        "origin": Relation("province", ("Where do visitors of {S} come from?", "Which province has ties with {S}?")),
        "speciality": Relation("dish", ("What does {S} cook?", "Which dish is the speciality of {S}?")),
        "step": Relation("dance", ("What does {S} dance?", "Which dance does {S} master?")),
        "planted": Relation("tree", ("Which tree does {S} own?", "What did {S} plant?")),
        "kin": Relation("province", ("Where is the family of {S}?", "In which province has {S} relatives?")),
    },
    values={
        "person": UPLANDERS, "crop": tuple(CROPS), "tree": tuple(TREES), "number": NUMBERS, "year": YEARS,
        "province": PROVINCES, "dish": DISHES, "composer": tuple(COMPOSERS), "dance": DANCES, "metal": METALS,
    },
    roles={
        "farmer": "the farmer of {S}", "driver": "the driver of {S}", "leader": "the leader of {S}",
        "head": "the head of {S}",
    },
    coarser={"crop": CROPS, "tree": TREES, "composer": COMPOSERS},
    coarse_questions={
        "crop": "What kind of crop does {S} grow?",
        "tree": "What sort of trees are near {S}?",
        "planted": "What sort of tree does {S} own?",
        "composer": "From which era is the music of {S}?",
    },
)  # fmt: skip
SOURCE_WORLDS = {world.name: world for world in (HARBOUR, VALLEY, UPLAND)}

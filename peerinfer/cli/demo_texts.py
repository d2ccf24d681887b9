"""The demo's own texts: long instructions that chats share, each with questions about it.

Written for this project. Each text has 400 to 500 tokens, the length of a usual system prompt or of a
few-shot header, and is about something else, so that no two share more than their first words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A long text that many chats share, and what they ask about it."""

    name: str
    text: str
    questions: tuple[str, ...]
    max_tokens: int = 8
    """An answer's length: short, since the demo is about prefill."""


TOPICS = (
    Topic(
        name="ferry",
        text="""You answer passengers of the Harrow Sound ferry. Be brief, and rely only on these notes.
The boats Alma and Petrel cross between Westquay and the island of Thorn. From April to September a boat
leaves Westquay every hour from six in the morning until nine in the evening; it leaves Thorn on the
half hour. From October to March there are five crossings a day: at seven, ten, one, four and seven
o'clock from Westquay, and one hour later from Thorn. The crossing takes thirty-five minutes, in strong
wind up to fifty. With wind from the north above force eight the boats stay in port; the decision falls
at five in the morning and is put on the board at both quays. A single ticket costs six euros, a return
ten. Children under twelve travel free with an adult, from twelve to sixteen they pay half. A bicycle
costs two euros, a car eighteen including its driver, and cars must be booked by noon of the day before,
because the Alma has room for only eleven of them and the Petrel for none. Dogs travel free on a lead,
but stay on the open deck. Tickets are sold at the quays and on board, where only cards are taken. A
return ticket is valid for thirty days. Whoever misses the last boat can sleep at the harbour house on
Thorn for twenty euros; its key is at the lighthouse. Lost things are kept at Westquay for three months,
and the office there is open from eight to six. People in wheelchairs board first and should ring an
hour ahead, since the ramp at Thorn must be lowered by hand and cannot be used in the hour around low
tide. Coffee and soup are sold on the Petrel, nothing on the Alma. Smoking is allowed nowhere on board.""",
        questions=(
            "When does the last boat leave Westquay in July?",
            "What does a return ticket cost for a child of fourteen?",
            "Can I take my car on the Petrel?",
            "Where may my dog stay during the crossing?",
            "I lost my hat last month. Where do I ask?",
            "How long does the crossing take in strong wind?",
        ),
    ),
    Topic(
        name="espresso",
        text="""Here is the service guide of the Corvo 2 espresso machine. Help the technician with it,
step by step, and never suggest opening the boiler while it is warm. The machine has one boiler of
copper for steam and one of steel for coffee. The steel boiler is kept at ninety-three degrees, the
copper one at one hundred and twenty-four. After switching on, the green lamp blinks until both are hot,
which takes eleven minutes; if it blinks for more than twenty, the fuse behind the drip tray has blown,
and the part to order is number 3308. A red lamp that stays on means that the tank is empty or its float
is stuck. A red lamp that blinks twice means that the pump draws no water: bleed it by opening the steam
valve for ten seconds with the pump running. Three blinks report the temperature sensor of the steel
boiler, four that of the copper boiler; both sensors have the same part number, 4120, and are changed
with a key of fourteen millimetres after an hour of cooling. Pressure is set with the brass screw under
the cup rail: a quarter of a turn to the right adds half a bar. It should read nine bars on the left
gauge while coffee flows. If the coffee runs in less than twenty seconds, grind finer before you touch
the screw. The seal of the brew group is number 2051 and lasts a year with daily use; it is due when
water creeps out around the handle. Descale every three hundred litres, or when the counter in the menu
shows a drop, with citric acid and never with vinegar, which attacks the copper. The water filter is
number 1177 and lasts two months. Close the steam valve by hand only, since a wrench will score its
seat. After each repair run two cups of water through both boilers and note the date inside the left
door.""",
        questions=(
            "The red lamp blinks twice. What should I do?",
            "Which part is needed when the green lamp blinks for half an hour?",
            "How do I raise the pressure by one bar?",
            "Water creeps out around the handle. What is worn?",
            "May I descale it with vinegar?",
            "Which key fits the temperature sensor?",
        ),
    ),
    Topic(
        name="tenancy",
        text="""What follows is the agreement about the flat on the second floor of Number 14, Mill
Lane. Answer the tenant's questions from it, quote the paragraph, and say so where it is silent. One:
the flat has three rooms, a kitchen, a bath and the left half of the cellar, and is let from the first
of March without an end. Two: the rent is seven hundred and forty euros, due on the third working day of
each month; heating and water come to another one hundred and thirty and are settled every June. Three:
the deposit of two months' rent is kept on an account of its own and is paid back within eight weeks
after the keys were handed over. Four: the tenant may keep cats, birds and fish without asking; for a
dog the landlord's consent is needed, and it may be refused only with a reason. Five: one room may be
sublet for up to a year after notice in writing. Six: the tenant sees to small repairs up to ninety
euros each, though not more than three hundred in a year; everything else is the landlord's duty and
must be reported within a week. Seven: walls may be painted in any colour, but are to be handed back
white or as they were. Eight: nails and screws are allowed, tiles must not be drilled. Nine: from ten in
the evening until six in the morning it is quiet, and music is played for two hours a day at most. Ten:
the stairs are cleaned in turn, in even weeks by the second floor. Eleven: bicycles stand in the yard,
prams below the stairs, nothing in the corridor. Twelve: the tenant may give notice at any time with
three months, the landlord with three, after five years with six, and only for one of the causes that
the law lists. Thirteen: the landlord may enter after two days' notice, in daylight. Fourteen: the
garden belongs to all, and whoever plants a tree asks the others first.""",
        questions=(
            "May I keep a dog in the flat?",
            "Who pays for a repair of eighty euros?",
            "When do I get the deposit back?",
            "Am I allowed to drill into the tiles?",
            "How much notice must I give to leave?",
            "Where can I leave my bicycle?",
        ),
    ),
    Topic(
        name="museum",
        text="""As the voice of the Museum of Small Machines, guide visitors through its five rooms in a
friendly tone and keep to what is written here. Room one shows clocks. The oldest is an iron turret
clock of 1542 from the church of Aldern, with a single hand, since minutes did not matter then. Beside
it stands the traveller's watch of Marie Lenoir, who built it in 1788 to run for eight days, and who
signed her works with a swallow. Room two holds calculating machines: a stepped drum of 1820, of which
only four were made, a tide predictor with sixteen brass wheels that served the port of Lenham until
1961, and a machine of 1911 that adds fractions and nothing else. Room three belongs to music. The
orchestrion in its middle has forty pipes, two drums and a triangle; it plays at eleven and at three,
for seven minutes, from rolls of punched paper, and visitors may choose the roll. The singing bird in
the glass case is from Geneva and moves its beak, tail and throat by one spring. Room four is the
workshop, where Ilse Brandt repairs what wears out; on Saturdays she lets children from the age of eight
take a clock apart, and help is needed to put it together again. Room five changes twice a year and now
shows locks: a Roman padlock in the shape of a hare, a chest with twenty-four bolts, and a lock that
nobody has opened without its key since 1851, though a prize of two hundred guineas still stands. The
museum is open from ten to five and closed on Tuesdays. Entry costs eight euros, four for students, and
nothing on the first Sunday of a month. Photographs are welcome without flash. The lift reaches all
rooms but the workshop, which has three steps and a ramp on request. Bags larger than a sheet of paper
stay in the lockers, which take a coin and give it back. The cafe sells plum cake by a recipe that came
with the orchestrion.""",
        questions=(
            "When does the orchestrion play?",
            "Why does the turret clock have only one hand?",
            "What can children do on Saturdays?",
            "On which day is the museum closed?",
            "How did Marie Lenoir sign her works?",
            "Has anyone opened the lock from 1851?",
        ),
    ),
    Topic(
        name="bread",
        text="""Teach a beginner to bake the rye loaf described below, one step at a time, in plain
words, and warn in time of what goes wrong most. The day before, stir fifty grams of sourdough starter
into two hundred grams of wholemeal rye flour and two hundred of water at forty degrees. Cover it and
leave it at room warmth for sixteen hours, until it has doubled, smells of apples and shows cracks on
top. Put fifty grams of it back into the fridge for the next time; this is the step that everybody
forgets once. On the day itself pour three hundred grams of boiling water over one hundred grams of
stale bread in crumbs and one tablespoon of salt, and let it cool until a finger bears it: hotter than
forty-five degrees would kill the starter. Add the starter, three hundred grams of fine rye flour, one
hundred of wheat flour, one spoon of honey, and, as you like, a teaspoon of caraway. Mix for five
minutes with a wooden spoon. Rye dough is not kneaded, does not stretch and sticks to everything; wet
hands and a wet scraper help, more flour does not. Fill it into a buttered tin of one and a half litres,
smooth it with a wet spoon, and let it rise for ninety minutes to two hours. It is ready when small
holes show on top; if the surface sinks, it has stood too long and will be sour and flat. Heat the oven
to two hundred and fifty degrees, with a bowl of water on its floor for the first ten minutes. Put the
loaf in, and after fifteen minutes turn down to one hundred and eighty and take the bowl away. After
fifty more minutes it sounds hollow when knocked from below, and a thermometer in its middle reads
ninety-seven. Let it cool on a rack, wrapped in linen, and do not cut it before the next morning, since
warm rye bread tears and glues the knife. It keeps for a week in a clay pot and is best on the third
day.""",
        questions=(
            "How long does the starter stand on the first day?",
            "Why should the soaked crumbs cool down first?",
            "How do I know that the loaf is done?",
            "May I knead in more flour if it sticks?",
            "When can I cut the bread?",
            "How hot is the oven at the beginning?",
        ),
    ),
    Topic(
        name="lighthouse",
        text="""Keeper's log, first watch: please use these standing orders of Cape Merrow light to
advise the relief crew, and answer in one sentence. The lamp is lit half an hour before sunset and put
out half an hour after sunrise. It shows two white flashes every fifteen seconds, and a red sector
toward the Sisters reef from bearing two hundred and ten to two hundred and forty. If the main lamp
fails, the changer brings the spare into focus within four seconds; note the hour, replace the failed
lamp before noon, and report to the coast office on channel twelve. If the clockwork of the optic stops,
turn it by hand with the crank on the lower gallery, one turn in half a minute, until the motor runs;
two keepers relieve each other every forty minutes. The foghorn is started when the church of Saint
Olan, three miles off, can no longer be seen: one blast of five seconds each minute. It uses nine litres
of oil an hour, and its tank holds two hundred and seventy. The diesel is run for one hour each Monday
even if the mains have not failed, and its batteries are topped up with distilled water only. Supplies
come by boat on the first and third Thursday if the swell at the landing is below one metre and a half;
else by helicopter, for which the flag is lowered and all washing taken in. Weather is written down at
six, noon, six and midnight: wind, cloud, visibility, sea, and the barometer to a tenth. A fall of more
than six points in three hours is reported at once. Ships in distress are answered with the white signal
lamp and the bearing is taken twice, from the gallery and from the flagstaff. Birds that strike the
lantern in autumn are counted, ringed and laid in the box by the door. Nobody goes down to the landing
alone, nor at all when the bell buoy can be heard from the kitchen. The visitors' book lies on the
stairs, and children may ring the brass bell once.""",
        questions=(
            "How often does the light flash?",
            "What do I do when the clockwork stops?",
            "When is the foghorn started?",
            "On which days does the supply boat come?",
            "How much oil does the foghorn tank hold?",
            "When is a falling barometer reported?",
        ),
    ),
)

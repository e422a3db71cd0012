"""Prompt text: common English words in random order, from a seed.

Every engine gets the same text, so no tokenizer is used here. In most vocabularies most of these words, with the space
before them, are one token: a length in words is close to one in tokens. The exact count comes from the server's usage.
"""

from __future__ import annotations

import random

_LIST = """
able about above across act add after again age air all alone along also always among animal answer any appear area
arm around art ask back ball bank base bear beat beauty bed been before began behind believe best better between big
bird black blood blue board boat body bone book both bottom box boy bread break bright bring brother brought brown
build burn busy buy call came can capital car care carry case catch cause cell center central certain chair chance
change charge check child children choose church circle city claim class clean clear climb close cloth cloud coast
cold color come common company compare complete condition consider contain continue control cook cool copy corn corner
correct cost cotton could count country course cover create cross crowd cry current cut dance danger dark daughter day
dead deal dear death decide deep degree design desert develop die differ difficult direct discuss distance divide
doctor does dog dollar door double down draw dream dress drink drive drop dry during each ear early earth ease east
eat edge effect egg eight either electric element else end enemy energy engine enough enter equal evening event ever
every exact example except excite exercise expect experience explain eye face fact fair fall family famous far farm
fast father favor fear feed feel feet field fight figure fill final find fine finger finish fire first fish fit five
flat floor flow flower fly follow food foot force foreign forest form forward found four free fresh friend from front
fruit full fun game garden gas general gentle girl give glad glass gold gone good govern grand grass gray great green
grew ground group grow guess guide hair half hand happen happy hard have head hear heart heat heavy held help her here
high hill history hold hole home hope horse hot hour house how huge human hundred hunt hurry ice idea imagine inch
include indicate industry insect instant instrument interest invent iron island job join joy jump just keep key kill
kind king knew know lady lake land language large last late laugh law lay lead learn least leave left leg length less
letter level lie life lift light like line list listen little live local long look lost loud love low machine made
magnet main major make man many map mark market mass master match material matter may mean measure meat meet melody
men metal method middle might mile milk million mind mine minute miss mix modern moment money month moon more morning
most mother motion mountain mouth move much music must name nation natural nature near necessary neck need neighbor
never new next night nine noise noon north nose note nothing notice noun now number object observe ocean off offer
office often oil old once only open operate opposite order other out over own page paint pair paper parent part
particular party pass past path pattern pay people perhaps period person phrase pick picture piece place plain plan
plane planet plant play please poem point poor port pose position possible post pound power practice prepare present
press pretty print problem process produce product proper property protect prove provide pull push put question quick
quiet quite race radio rain raise ran range rather reach read ready real reason receive record red region remember
repeat reply represent require rest result return rich ride right ring rise river road rock roll room root rope rose
round row rub rule run safe sail salt same sand save saw say scale school science sea search season seat second
section see seed seem select self sell send sense sentence separate serve set settle seven several shape share sharp
she ship shoe shop shore short should shoulder shout show side sight sign silent silver similar simple since sing
sister sit six size skill skin sky sleep slip slow small smell smile snow soft soil soldier solution solve some son
song soon sound south space speak special speech speed spell spend spoke spot spread spring square stand star start
state station stay steam steel step stick still stone stood stop store story straight strange stream street stretch
string strong student study subject success such sudden sugar suggest suit summer sun supply support sure surface
surprise swim syllable symbol system table tail take talk tall teach team teeth tell temperature ten term test than
thank their then there these thick thin thing think third those though thought thousand through throw time tire
together tone tool top total touch toward town track trade train travel tree triangle trip trouble truck true try tube
turn twenty two type under unit until usual valley value vary very view village visit voice vowel wait walk wall want
war warm wash watch water wave way wear weather week weight well went were west wheel when where which while white
whole whose wide wife wild will wind window wing winter wire wish with woman wonder wood word work world would write
written wrong yard year yellow yes yet you young
"""
WORDS = tuple(_LIST.split())


def random_words(rng: random.Random, num_words: int) -> str:
    """Return this many words, separated by spaces."""
    return " ".join(rng.choices(WORDS, k=num_words))

"""Words and sentence patterns of the generated documents, in Korean and English."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Language = Literal["ko", "en"]
Kind = Literal["number", "place", "date", "person", "comparison", "cause"]

# domain letter → what the document is about
SUBJECTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "c": ("미술관", "art museum"),
        "e": ("상사", "trading company"),
        "h": ("병원", "hospital"),
        "i": ("연구소", "institute"),
        "m": ("방송", "radio station"),
        "s": ("구단", "football club"),
        "t": ("여행사", "travel agency"),
    }
)
NAMES: tuple[tuple[str, str], ...] = (
    ("가온", "Gaon"),
    ("누리", "Nuri"),
    ("다솜", "Dasom"),
    ("라온", "Raon"),
    ("마루", "Maru"),
    ("바름", "Bareum"),
    ("새벽", "Saebyeok"),
    ("아람", "Aram"),
    ("자람", "Jaram"),
    ("차온", "Chaon"),
    ("푸른", "Pureun"),
    ("한빛", "Hanbit"),
)
PLACES: tuple[tuple[str, str], ...] = (
    ("수원", "Suwon"),
    ("전주", "Jeonju"),
    ("강릉", "Gangneung"),
    ("목포", "Mokpo"),
    ("경주", "Gyeongju"),
    ("춘천", "Chuncheon"),
    ("여수", "Yeosu"),
    ("안동", "Andong"),
)
PEOPLE: tuple[tuple[str, str], ...] = (
    ("김서윤", "Kim Seoyun"),
    ("이도현", "Lee Dohyun"),
    ("박하린", "Park Harin"),
    ("최민재", "Choi Minjae"),
    ("정유나", "Jung Yuna"),
    ("한지호", "Han Jiho"),
    ("오세린", "Oh Serin"),
    ("윤태오", "Yoon Taeo"),
)
CAUSES: tuple[tuple[str, str], ...] = (
    ("수요 증가", "rising demand"),
    ("인력 부족", "a lack of staff"),
    ("주민 요청", "requests from residents"),
    ("태풍 피해", "typhoon damage"),
    ("비용 상승", "higher costs"),
    ("새 도로 개통", "a new road"),
)
# noun; clause with the subject as agent (Korean past tense), English noun; English past clause
EFFECTS: tuple[tuple[str, str, str, str], ...] = (
    ("시간 연장", "시간을 연장했다", "longer opening hours", "extended its opening hours"),
    ("공사 연기", "공사를 연기했다", "the delay of its building work", "delayed its building work"),
    ("요금 인상", "요금을 인상했다", "the rise of its prices", "raised its prices"),
    ("별관 신축", "별관을 신축했다", "the new annex", "built an annex"),
    ("행사 취소", "행사를 취소했다", "the cancelled festival", "cancelled its festival"),
    ("장비 교체", "장비를 교체했다", "the new equipment", "replaced its equipment"),
)
UNSUPPORTED: tuple[tuple[str, str], ...] = (
    ("{S}{은} 내년에 주식을 상장할 계획이다.", "Next year {S} plans to sell shares."),
    ("{S}{은} 지난달 해외 지점을 열었다.", "Last month {S} opened a branch abroad."),
    ("{S}{은} 최근 정부의 상을 받았다.", "Recently {S} won a government award."),
    ("{S}{은} 새 누리집을 준비하고 있다.", "A new website is being prepared by {S}."),
    ("{S}{은} 청소년 강좌를 무료로 연다.", "Free classes for teenagers are held by {S}."),
    ("{S}{은} 태양광으로 전기를 얻는다.", "All electricity of {S} comes from solar panels."),
)
# after a final consonant, after a vowel
PARTICLES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"은": ("은", "는"), "이": ("이", "가"), "을": ("을", "를")}
)
INSTRUCTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "faithful": (
            "문서에서 확인할 수 있는 문장을 모두 고르시오. 정답은 여러 개일 수 있다.",
            "Choose the statements that the document supports. There may be several.",
        ),
        "hallucinated": (
            "문서와 다르거나 불확실한 환각 문장을 모두 고르시오. 정답은 여러 개일 수 있다.",
            "Choose the hallucinated statements, which the document does not bear out. "
            "There may be several.",
        ),
    }
)


@dataclass(frozen=True)
class Relation:
    """How a fact about a subject S with object O is said.

    `{은}`, `{이}` and `{을}` after a Korean field become the particle that its last syllable asks
    for. Forms: in the document, as an option, the option denied, and (comparison and
    cause) with the roles of S and O exchanged.
    """

    name: str
    kind: Kind
    document: tuple[str, str]
    option: tuple[str, str]
    negated: tuple[str, str]
    reversed: tuple[str, str] | None = None


RELATIONS: tuple[Relation, ...] = (
    Relation(
        "opened",
        "date",
        ("{S}{은} {O}년에 문을 열었다.", "{S} opened in {O}."),
        ("{S}{이} 생긴 해는 {O}년이다.", "It was in {O} that {S} was founded."),
        ("{S}{이} 생긴 해는 {O}년이 아니다.", "It was not in {O} that {S} was founded."),
    ),
    Relation(
        "staff",
        "number",
        ("{S}에는 직원이 {O}명 있다.", "{S} has {O} employees."),
        ("{S}의 직원 수는 {O}명이다.", "The staff of {S} numbers {O} people."),
        ("{S}의 직원 수는 {O}명이 아니다.", "The staff of {S} does not number {O} people."),
    ),
    Relation(
        "visitors",
        "number",
        ("작년에 {O}명이 {S}{을} 찾았다.", "Last year {O} people came to {S}."),
        ("{S}의 작년 방문객은 {O}명이다.", "The number of visitors to {S} last year was {O}."),
        (
            "{S}의 작년 방문객은 {O}명이 아니다.",
            "The number of visitors to {S} last year was not {O}.",
        ),
    ),
    Relation(
        "rooms",
        "number",
        ("건물에는 방이 {O}개 있다.", "Its building has {O} rooms."),
        ("{S}의 방은 모두 {O}개이다.", "In all, {S} has {O} rooms."),
        ("{S}의 방은 모두 {O}개가 아니다.", "In all, {S} does not have {O} rooms."),
    ),
    Relation(
        "located",
        "place",
        ("{S}{은} {O}에 있다.", "{S} is in {O}."),
        ("{S}{이} 자리한 곳은 {O}이다.", "The city where {S} stands is {O}."),
        ("{S}{이} 자리한 곳은 {O}{이} 아니다.", "The city where {S} stands is not {O}."),
    ),
    Relation(
        "director",
        "person",
        ("대표는 {O}이다.", "Its director is {O}."),
        ("{O}{이} {S}{을} 이끌고 있다.", "{O} is in charge of {S}."),
        ("{O}{은} {S}{을} 이끌고 있지 않다.", "{O} is not in charge of {S}."),
    ),
    Relation(
        "budget",
        "comparison",
        ("{S}{은} {O}보다 예산이 많다.", "{S} has a larger budget than {O}."),
        ("{O}의 예산은 {S}보다 적다.", "The budget of {O} is smaller than that of {S}."),
        (
            "{O}의 예산은 {S}보다 적지 않다.",
            "The budget of {O} is not smaller than that of {S}.",
        ),
        ("{S}의 예산은 {O}보다 적다.", "The budget of {S} is smaller than that of {O}."),
    ),
    Relation(
        "cause",
        "cause",
        ("{C} 때문에 {S}{은} {clause}.", "Because of {C}, {S} {clause}."),
        ("{S}의 {E}{은} {C}에서 비롯했다.", "At {S}, {E} came from {C}."),
        ("{S}의 {E}{은} {C}에서 비롯하지 않았다.", "At {S}, {E} did not come from {C}."),
        ("{C}{은} {S}의 {E}에서 비롯했다.", "{C} came from {E} at {S}."),
    ),
)


def with_particle(word: str, particle: str) -> str:
    """The word with the form of a Korean particle that its last syllable asks for.

    A syllable has a final consonant iff (code - 0xAC00) mod 28 is not 0; after anything that is
    no Hangul syllable the form for a vowel is taken.

    >>> with_particle("미술관", "은"), with_particle("상사", "은"), with_particle("목포", "이")
    ('미술관은', '상사는', '목포가')
    """
    if particle not in PARTICLES:
        raise ValueError(f"particle must be one of {list(PARTICLES)}, got {particle!r}")
    code = ord(word[-1]) - 0xAC00
    closed = 0 <= code < 11172 and code % 28 != 0
    return word + PARTICLES[particle][0 if closed else 1]

//! Query texts from templates: each slice has shared templates, and templates for test queries only. Takes words; never
//! knows their meaning.

use super::dice::Dice;
use super::slice::QuerySlice;
use souk_io::typo::mistype;

/// Words of one query; a template uses those it has placeholders for.
#[derive(Default)]
pub struct Words {
    pub name: String,
    /// Values before the name.
    pub front: Vec<String>,
    /// Values after the name.
    pub back: Vec<String>,
    /// All values in the form used after a name: "in black".
    pub asked: Vec<String>,
    pub brand: String,
    /// Brand and series of which an alternative is wanted.
    pub reference: String,
    pub cheaper: bool,
    pub task: String,
    pub price: String,
    pub refusal: String,
    pub drawback: String,
    pub fact: String,
    /// Whether to add a typing error.
    pub has_typo: bool,
}

/// Shared templates, and templates for test queries only.
type Templates = (&'static [&'static str], &'static [&'static str]);

const GENERAL: Templates = (
    &[
        "{brand} {front} {name} {back}",
        "{brand} {name} {front} {back}",
        "{front} {name} {brand} {back}",
        "{front} {name} {back} {brand}",
    ],
    &["{brand} {name}, {back}, {front}", "{name} {brand} {asked}"],
);
const LONG_TAIL: Templates = (
    &[
        "{front} {name} {back}",
        "{name} {asked}",
        "{name} {back} {front}",
        "i need a {front} {name} {back}",
        "looking for a {front} {name} {back}",
    ],
    &["i want a {name} {asked}", "{back} {front} {name}", "{name}, {back}, {front}"],
);
const QUESTION: Templates = (
    &[
        "how to {task} {price}",
        "what to buy to {task} {price}",
        "something to {task} {price}",
        "what helps to {task} {price}",
        "i want to {task} {price}",
        "what do i need to {task} {price}",
    ],
    &["how do i {task} {price}", "what to use to {task} {price}", "need something to {task} {price}, what helps"],
);
/// Templates for tasks that an item performs itself.
const DOES: Templates = (
    &["what {does} {price}", "something that {does} {price}"],
    &["what is it that {does} {price}", "i need something that {does} {price}"],
);
const ALTERNATIVE: Templates = (
    &[
        "alternative to {reference}",
        "{name} like {reference} of another brand",
        "alternative to {reference} {name}",
        "{name} instead of {reference}",
        "something like {reference} but not from them",
        "the same as {reference} from somebody else",
    ],
    &[
        "{reference} alternative",
        "looking for a {name} instead of {reference}",
        "same {name} as {reference} but another brand",
    ],
);
const CHEAPER: Templates = (
    &[
        "cheaper alternative to {reference}",
        "{name} like {reference} but cheaper",
        "the same as {reference} for less money",
        "less expensive {name} than {reference}",
    ],
    &["{name} as {reference} but for less money", "alternative to {reference} that is cheaper"],
);
const REFUSAL: Templates = (
    &[
        "{front} {name} {back} {refusal}",
        "{name} {front} {back} {refusal}",
        "{name} {refusal} {asked}",
        "i want a {front} {name} {refusal} {back}",
    ],
    &["{name} {asked} {refusal}", "looking for a {front} {name} {back} {refusal}"],
);
const DRAWBACK: Templates = (
    &[
        "{front} {name} {back} that {do} not {drawback}",
        "{name} that will not {drawback} {asked}",
        "{front} {name} {back} which {do} not {drawback}",
        "i want a {front} {name} {back}, {it} should never {drawback}",
    ],
    &["{name} {asked} that will never {drawback}", "looking for a {front} {name} {back}, {it} should not {drawback}"],
);
const KNOWLEDGE: Templates = (
    &[
        "{front} {name} {back} that {fact}",
        "{name} {asked} that {fact}",
        "{front} {name} {back} which {fact}",
        "which {front} {name} {back} {fact}",
    ],
    &["i need a {name} that {fact} {asked}", "looking for a {front} {name} {back} which {fact}"],
);

impl Words {
    /// Query text from a random template; with `test_phrasing`, from a test-only one with probability 0.6.
    pub fn sentence(&self, dice: &mut Dice, slice: QuerySlice, test_phrasing: bool) -> String {
        let (shared, test_only) = self.templates(dice, slice);
        let template = if test_phrasing && dice.chance(0.6) { dice.pick(test_only) } else { dice.pick(shared) };
        let plural = is_plural(&self.name);
        let template = if plural { template.replace("a {", "{") } else { (*template).to_owned() };
        let fact = if plural { plural_verb(&self.fact) } else { self.fact.clone() };
        let refusal = if plural {
            self.refusal.replace("that is ", "that are ").replace("that has ", "that have ")
        } else {
            self.refusal.clone()
        };
        let parts = [
            ("{name}", self.name.clone()),
            ("{front}", self.front.join(" ")),
            ("{back}", self.back.join(" ")),
            ("{asked}", self.asked.join(" ")),
            ("{brand}", self.brand.clone()),
            ("{reference}", self.reference.clone()),
            ("{task}", self.task.clone()),
            ("{does}", third_person(&self.task)),
            ("{price}", self.price.clone()),
            ("{refusal}", refusal),
            ("{drawback}", self.drawback.clone()),
            ("{do}", if plural { "do" } else { "does" }.to_owned()),
            ("{it}", if plural { "they" } else { "it" }.to_owned()),
            ("{fact}", fact),
        ];
        let full = parts.iter().fold(template, |text, (placeholder, words)| text.replace(placeholder, words));
        let tidy = full
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .replace(" ,", ",")
            .replace(",,", ",")
            .replace(" - -", " -");
        let text = article(tidy.trim_matches([' ', ',', '-'])).to_lowercase();
        if self.has_typo { mistype(dice.stream(), &text) } else { text }
    }

    fn templates(&self, dice: &mut Dice, slice: QuerySlice) -> Templates {
        match slice {
            QuerySlice::General => GENERAL,
            QuerySlice::LongTail => LONG_TAIL,
            QuerySlice::Qa if is_done_by_item(&self.task) && dice.chance(0.6) => DOES,
            QuerySlice::Qa => QUESTION,
            QuerySlice::Alternative if self.cheaper => CHEAPER,
            QuerySlice::Alternative => ALTERNATIVE,
            QuerySlice::Negative if self.refusal.is_empty() => DRAWBACK,
            QuerySlice::Negative => REFUSAL,
            QuerySlice::Knowledge => KNOWLEDGE,
        }
    }
}

pub fn price(dice: &mut Dice, euros: u32) -> String {
    match dice.below(3) {
        0 => format!("under {euros} euros"),
        1 => format!("for less than {euros}"),
        _ => format!("below {euros} euro"),
    }
}

/// Whether the item itself performs the task, as in "make hair black".
fn is_done_by_item(task: &str) -> bool {
    const VERBS: [&str; 14] = [
        "make", "keep", "turn", "cover", "calm", "hydrate", "soothe", "soften", "protect", "help", "block", "brighten",
        "stop", "bind",
    ];
    task.split(' ').next().is_some_and(|verb| VERBS.contains(&verb))
}

/// "make hair black" → "makes hair black".
fn third_person(task: &str) -> String {
    task.split_once(' ').map_or_else(String::new, |(verb, rest)| format!("{verb}s {rest}"))
}

/// Whether a name is plural: "socks", "hand weights", "shoes without laces", but not "dress" or "chess".
fn is_plural(name: &str) -> bool {
    let stops = [" for ", " with", " without ", " in ", " on ", " to ", " that "];
    let head = stops.iter().filter_map(|stop| name.find(stop)).min().map_or(name, |end| &name[..end]);
    let last = head.rsplit(' ').next().unwrap_or_default();
    last.ends_with('s') && !["ss", "us", "is"].iter().any(|end| last.ends_with(end)) && last != "pampers"
}

/// "keeps warm" → "keep warm", "is dry" → "are dry".
fn plural_verb(fact: &str) -> String {
    let (verb, rest) = fact.split_once(' ').unwrap_or((fact, ""));
    let plain = match verb {
        "is" => "are".to_owned(),
        "has" => "have".to_owned(),
        "hardly" | "rarely" | "never" => return format!("{verb} {}", plural_verb(rest)),
        _ if ["shes", "ches", "sses", "xes", "oes"].iter().any(|end| verb.ends_with(end)) => {
            verb[..verb.len() - 2].to_owned()
        }
        _ if verb.ends_with("ies") => format!("{}y", &verb[..verb.len() - 3]),
        _ => verb.strip_suffix('s').unwrap_or(verb).to_owned(),
    };
    format!("{plain} {rest}")
}

/// "a electric kettle" → "an electric kettle".
fn article(text: &str) -> String {
    let vowel = |word: &str| word.starts_with(['a', 'e', 'i', 'o']);
    let words: Vec<&str> = text.split(' ').collect();
    let fixed = words.iter().enumerate().map(|(at, word)| match words.get(at + 1) {
        Some(next) if *word == "a" && vowel(next) => "an",
        _ => word,
    });
    fixed.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar_equals_hand_written_examples() {
        assert!(is_plural("running shoes") && is_plural("shoes without laces") && is_plural("weights"));
        assert!(!is_plural("half dress") && !is_plural("kettle") && !is_plural("bag for the shoes"));
        assert_eq!(plural_verb("reaches the cellar"), "reach the cellar");
        assert_eq!(plural_verb("hardly weighs anything"), "hardly weigh anything");
        assert_eq!(plural_verb("can be boiled"), "can be boiled");
        assert_eq!(plural_verb("goes from freezer"), "go from freezer");
        assert_eq!(third_person("make hair black"), "makes hair black");
        assert_eq!(article("i need a electric kettle"), "i need an electric kettle");
    }

    #[test]
    fn empty_placeholders_leave_no_trace() {
        let words = Words { name: "kettle".into(), asked: vec!["in black".into()], ..Words::default() };
        let mut dice = Dice::new(&[1]);
        for slice in QuerySlice::ALL {
            for _ in 0..50 {
                let text = words.sentence(&mut dice, slice, true);
                assert!(!text.contains("  ") && !text.contains(['{', '}']) && text == text.trim(), "{text:?}");
            }
        }
    }
}

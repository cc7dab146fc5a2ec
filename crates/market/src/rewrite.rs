//! Ideal query rewrites: the full intent in sellers' words, an upper bound of what query rewriting can do for lexical search.
//! Excluded attributes and prices cannot be expressed and are omitted.

use super::intent::{Constraint, Intent};
use super::world::world;

/// Rewrites an intent in sellers' words, with the usual name of its category, or of all categories of its function.
pub fn rewrite(intent: &Intent) -> String {
    let world = world();
    let constraints = || intent.hard.iter().chain(&intent.soft);
    let mut words: Vec<&str> = Vec::new();
    let name = |category: usize| world.categories[category].names[0].as_str();
    match constraints()
        .find_map(|constraint| if let Constraint::Category(category) = constraint { Some(*category) } else { None })
    {
        Some(category) => words.push(name(category)),
        None => words.extend(world.functions[intent.function].categories.iter().map(|category| name(*category))),
    }
    words.extend(constraints().filter_map(|constraint| match *constraint {
        Constraint::Has { attribute, value } => Some(world.value(attribute, value).says[0].as_str()),
        Constraint::Fact(fact) => Some(world.facts[fact].says[0].as_str()),
        Constraint::Brand(brand) => Some(world.brands[brand].name.as_str()),
        Constraint::Category(_)
        | Constraint::Lacks { .. }
        | Constraint::NoFact(_)
        | Constraint::NotBrand(_)
        | Constraint::Below(_) => None,
    }));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn category(id: &str) -> usize {
        world().categories.iter().position(|category| category.id == id).unwrap()
    }

    #[test]
    fn rewrites_in_sellers_words_without_negated_constraints() {
        let attribute = world().attributes.iter().position(|attribute| attribute.id == "colour").unwrap();
        let at = |id: &str| world().attributes[attribute].values.iter().position(|value| value.id == id).unwrap() as u8;
        let kettle = category("electric-kettle");
        let function = world().categories[kettle].function;
        let brand = world().departments[world().categories[kettle].department].brands.start;
        let hard = vec![
            Constraint::Has { attribute, value: at("black") },
            Constraint::NotBrand(brand),
            Constraint::Below(2000),
        ];
        let soft = vec![Constraint::Category(kettle), Constraint::Lacks { attribute, value: at("white") }];
        let rewritten = rewrite(&Intent { function, hard: hard.clone(), soft });
        let colour = &world().value(attribute, at("black")).says[0];
        assert_eq!(rewritten, format!("{} {colour}", world().categories[kettle].names[0]));
        let open = rewrite(&Intent { function, hard, soft: Vec::new() });
        let all = &world().functions[function].categories;
        assert!(all.len() > 1 && all.iter().all(|category| open.contains(&world().categories[*category].names[0])));
    }
}

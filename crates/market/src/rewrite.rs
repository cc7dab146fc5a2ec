//! Queries as somebody would rewrite them who understands them completely and knows how sellers write: the bound of what any
//! rewriting can do for a channel of words. What is not wanted, and prices, have no words there.

use super::intent::{Intent, Wish};
use super::world::world;

/// Sellers' words for all that an intent asks for; for an item's kind, its usual name, or those of all that would serve.
pub fn rewrite(intent: &Intent) -> String {
    let world = world();
    let wishes = || intent.hard.iter().chain(&intent.soft);
    let mut words: Vec<&str> = Vec::new();
    let name = |category: usize| world.categories[category].names[0].as_str();
    match wishes().find_map(|wish| if let Wish::Category(category) = wish { Some(*category) } else { None }) {
        Some(category) => words.push(name(category)),
        None => words.extend(world.functions[intent.function].categories.iter().map(|category| name(*category))),
    }
    words.extend(wishes().filter_map(|wish| match *wish {
        Wish::Has { attribute, value } => Some(world.value(attribute, value).says[0].as_str()),
        Wish::Fact(fact) => Some(world.facts[fact].says[0].as_str()),
        Wish::Brand(brand) => Some(world.brands[brand].name.as_str()),
        Wish::Category(_) | Wish::Lacks { .. } | Wish::NoFact(_) | Wish::NotBrand(_) | Wish::Below(_) => None,
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
    fn what_is_wanted_is_said_as_sellers_say_it_and_what_is_not_is_left_out() {
        let attribute = world().attributes.iter().position(|attribute| attribute.id == "colour").unwrap();
        let at = |id: &str| world().attributes[attribute].values.iter().position(|value| value.id == id).unwrap() as u8;
        let kettle = category("electric-kettle");
        let function = world().categories[kettle].function;
        let brand = world().departments[world().categories[kettle].department].brands.start;
        let hard = vec![Wish::Has { attribute, value: at("black") }, Wish::NotBrand(brand), Wish::Below(2000)];
        let soft = vec![Wish::Category(kettle), Wish::Lacks { attribute, value: at("white") }];
        let said = rewrite(&Intent { function, hard: hard.clone(), soft });
        let colour = &world().value(attribute, at("black")).says[0];
        assert_eq!(said, format!("{} {colour}", world().categories[kettle].names[0]));
        let open = rewrite(&Intent { function, hard, soft: Vec::new() });
        let all = &world().functions[function].categories;
        assert!(all.len() > 1 && all.iter().all(|category| open.contains(&world().categories[*category].names[0])));
    }
}

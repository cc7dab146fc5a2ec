//! Reads the compiled-in TOML files of the world: resolves names to indices and validates patterns. An unknown name is an
//! error.

use std::collections::HashMap;

use serde::Deserialize;

use super::{
    Attribute, AttributeValue, Brand, Category, Department, Fact, Facts, Function, FunctionTask, MAX_SLOTS, NONE,
    Series, Slot, World,
};
use crate::dice::Dice;
use crate::world::units;
use souk_io::error::{Error, Result};
use souk_io::fnv::hash_text;

const FILES: [(&str, &str); 10] = [
    ("shared.toml", include_str!("shared.toml")),
    ("kitchen.toml", include_str!("kitchen.toml")),
    ("beauty.toml", include_str!("beauty.toml")),
    ("clothing.toml", include_str!("clothing.toml")),
    ("electronics.toml", include_str!("electronics.toml")),
    ("home.toml", include_str!("home.toml")),
    ("outdoor.toml", include_str!("outdoor.toml")),
    ("garden.toml", include_str!("garden.toml")),
    ("pets.toml", include_str!("pets.toml")),
    ("family.toml", include_str!("family.toml")),
];
/// Model series per brand and category.
const SERIES_PER_BRAND: usize = 2;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileToml {
    department: Option<String>,
    #[serde(default)]
    fluff: Vec<String>,
    #[serde(default)]
    brands: Vec<BrandToml>,
    #[serde(default)]
    facts: Vec<FactToml>,
    #[serde(default)]
    attribute: Vec<AttributeToml>,
    #[serde(default)]
    function: Vec<FunctionToml>,
    #[serde(default)]
    category: Vec<CategoryToml>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BrandToml {
    name: String,
    tier: f32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FactToml {
    id: String,
    asks: String,
    says: String,
    #[serde(default)]
    drawback: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttributeToml {
    id: String,
    #[serde(default)]
    front: bool,
    #[serde(default)]
    absent: f32,
    ask: Option<String>,
    tell: Vec<String>,
    #[serde(default)]
    refuse: Vec<String>,
    #[serde(default)]
    values: Vec<ValueToml>,
    unit: Option<String>,
    #[serde(default)]
    numbers: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueToml {
    id: String,
    says: String,
    asks: String,
    weight: f32,
    #[serde(default)]
    implies: String,
    #[serde(default)]
    plain: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionToml {
    id: String,
    tasks: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CategoryToml {
    id: String,
    function: String,
    names: String,
    asks: String,
    price: (f32, f32),
    weight: f32,
    attributes: Vec<String>,
}

/// Index of each name.
type NameIndex = HashMap<String, usize>;

pub fn read() -> Result<World> {
    let mut files = Vec::new();
    for (name, text) in FILES {
        let file: FileToml =
            toml::from_str(text).map_err(|e| Error::config(name, "is not a valid world file").because(e))?;
        files.push((name, file));
    }
    let mut world = World {
        departments: Vec::new(),
        attributes: Vec::new(),
        facts: Vec::new(),
        functions: Vec::new(),
        categories: Vec::new(),
        brands: Vec::new(),
        slot_index: Vec::new(),
    };
    let facts = read_facts(&mut world, &mut files)?;
    let attributes = read_attributes(&mut world, &mut files, &facts)?;
    let functions = read_functions(&mut world, &mut files, &attributes)?;
    for (name, file) in files {
        let Some(department) = file.department else { continue };
        let first = world.brands.len();
        world.brands.extend(file.brands.into_iter().map(|brand| Brand { name: brand.name, tier: brand.tier }));
        let brands = first..world.brands.len();
        world.departments.push(Department { name: department, fluff: file.fluff, brands });
        for category in file.category {
            let category = read_category(&world, category, &attributes, &functions)
                .map_err(|problem| Error::config(name, problem))?;
            world.functions[category.function].categories.push(world.categories.len());
            world.categories.push(category);
        }
    }
    index_slots(&mut world);
    Ok(world)
}

fn words(text: &str) -> Vec<String> {
    text.split('|').map(|word| word.trim().to_owned()).collect()
}

fn find(names: &NameIndex, name: &str, what: &str) -> std::result::Result<usize, String> {
    names.get(name).copied().ok_or_else(|| format!("unknown {what} `{name}`"))
}

fn insert(names: &mut NameIndex, id: &str, at: usize, file: &str) -> Result<()> {
    match names.insert(id.to_owned(), at) {
        None => Ok(()),
        Some(_) => Err(Error::config(file, format!("`{id}` is defined twice"))),
    }
}

fn read_facts(world: &mut World, files: &mut [(&str, FileToml)]) -> Result<NameIndex> {
    let mut names = NameIndex::new();
    for (name, file) in files {
        for fact in std::mem::take(&mut file.facts) {
            insert(&mut names, &fact.id, world.facts.len(), name)?;
            let FactToml { asks, says, drawback, .. } = fact;
            world.facts.push(Fact { asks: words(&asks), says: words(&says), drawback });
        }
    }
    if world.facts.len() <= Facts::MAX {
        Ok(names)
    } else {
        Err(Error::config("world", format!("more than {} facts", Facts::MAX)))
    }
}

fn read_attributes(world: &mut World, files: &mut [(&str, FileToml)], facts: &NameIndex) -> Result<NameIndex> {
    let mut names = NameIndex::new();
    for (name, file) in files {
        for attribute in std::mem::take(&mut file.attribute) {
            insert(&mut names, &attribute.id, world.attributes.len(), name)?;
            let read = read_attribute(attribute, facts).map_err(|problem| Error::config(name.to_owned(), problem))?;
            world.attributes.push(read);
        }
    }
    Ok(names)
}

fn read_attribute(toml: AttributeToml, facts: &NameIndex) -> std::result::Result<Attribute, String> {
    let mut values = Vec::new();
    for value in toml.values {
        let mut implies = Facts::default();
        for fact in value.implies.split_whitespace() {
            implies.insert(find(facts, fact, "fact")?);
        }
        let (says, asks) = (words(&value.says), words(&value.asks));
        values.push(AttributeValue { id: value.id, says, asks, weight: value.weight, implies, plain: value.plain });
    }
    if let Some(unit) = &toml.unit {
        let measured = toml.numbers.iter().map(|number| {
            let (says, asks) = units::spellings(*number, unit);
            AttributeValue {
                id: format!("{number} {unit}"),
                says,
                asks,
                weight: 3.0,
                implies: Facts::default(),
                plain: true,
            }
        });
        values.extend(measured);
    }
    let lacks_placeholder = |pattern: &&String| !pattern.contains("{}");
    match toml.tell.iter().chain(&toml.refuse).chain(&toml.ask).find(lacks_placeholder) {
        Some(pattern) => return Err(format!("pattern `{pattern}` has no `{{}}` for a value")),
        None if values.is_empty() || values.len() >= usize::from(NONE) => {
            return Err(format!("attribute `{}` needs 1 to {} values", toml.id, NONE - 1));
        }
        None => {}
    }
    Ok(Attribute {
        id: toml.id,
        front: toml.front,
        absent: toml.absent,
        ask: toml.ask.unwrap_or_else(|| "{}".into()),
        tell: toml.tell,
        refuse: toml.refuse,
        values,
    })
}

fn read_functions(world: &mut World, files: &mut [(&str, FileToml)], attributes: &NameIndex) -> Result<NameIndex> {
    let mut names = NameIndex::new();
    for (name, file) in files {
        for FunctionToml { id, tasks } in std::mem::take(&mut file.function) {
            insert(&mut names, &id, world.functions.len(), name)?;
            let mut read = Vec::new();
            for text in tasks {
                let slot = text.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(slot, _)| slot);
                let slot = slot.map(|slot| find(attributes, slot, "attribute")).transpose();
                let attribute = slot.map_err(|problem| Error::config(name.to_owned(), problem))?;
                read.push(FunctionTask { text, attribute });
            }
            world.functions.push(Function { tasks: read, categories: Vec::new() });
        }
    }
    Ok(names)
}

fn read_category(
    world: &World,
    toml: CategoryToml,
    attributes: &NameIndex,
    functions: &NameIndex,
) -> std::result::Result<Category, String> {
    let slots: Vec<Slot> =
        toml.attributes.iter().map(|text| read_slot(world, text, attributes)).collect::<std::result::Result<_, _>>()?;
    if slots.len() < 2 || slots.len() > MAX_SLOTS {
        return Err(format!("`{}` needs 2 to {MAX_SLOTS} attributes", toml.id));
    }
    let department = world.departments.len() - 1;
    let series =
        world.departments[department].brands.clone().flat_map(|brand| brand_series(world, &toml.id, brand, &slots));
    Ok(Category {
        department,
        function: find(functions, &toml.function, "function")?,
        names: words(&toml.names),
        asks: words(&toml.asks),
        price: toml.price,
        weight: toml.weight,
        series: series.collect(),
        slots,
        id: toml.id,
    })
}

/// Parses `material`, `material = steel glass` or `material = steel:5 glass`.
fn read_slot(world: &World, text: &str, attributes: &NameIndex) -> std::result::Result<Slot, String> {
    let (name, chosen) = text.split_once('=').unwrap_or((text, ""));
    let place = find(attributes, name.trim(), "attribute")?;
    let all = &world.attributes[place].values;
    let (mut values, mut weights) = (Vec::new(), Vec::new());
    for word in chosen.split_whitespace() {
        let (id, weight) = word.split_once(':').map_or((word, None), |(id, weight)| (id, Some(weight)));
        let named = |value: &AttributeValue| value.id.split(' ').next() == Some(id);
        let at = all.iter().position(named).ok_or_else(|| format!("`{id}` is not a value of `{name}`"))?;
        let weight = weight.map_or(Ok(all[at].weight), str::parse).map_err(|e| format!("`{word}`: {e}"))?;
        values.push(u8::try_from(at).expect("attributes have fewer than 255 values"));
        weights.push(weight);
    }
    if values.is_empty() {
        values = (0..NONE).take(all.len()).collect();
        weights = all.iter().map(|value| value.weight).collect();
    }
    Ok(Slot { attribute: place, values, weights })
}

/// Model series of a brand, with invented names and fixed values of the first two attributes.
fn brand_series(world: &World, category: &str, brand: usize, slots: &[Slot]) -> Vec<Series> {
    let place = [hash_text(category), hash_text(&world.brands[brand].name)];
    let make = |number: usize| {
        let mut dice = Dice::new(&[place[0], place[1], number as u64]);
        let pins = [0, 1].map(|at| slots[at].values[dice.weighted(slots[at].weights.iter().copied())]);
        Series { brand, name: series_name(&mut dice), pins }
    };
    (0..SERIES_PER_BRAND).map(make).collect()
}

fn series_name(dice: &mut Dice) -> String {
    const BEGIN: [&str; 32] = [
        "Al", "Ar", "Bel", "Bor", "Cal", "Cor", "Dal", "Del", "El", "Fal", "Fen", "Gal", "Hal", "Il", "Jor", "Kal",
        "Kor", "Lun", "Mar", "Mel", "Nor", "Or", "Pal", "Quin", "Ral", "Sel", "Sol", "Tal", "Ul", "Val", "Vin", "Zel",
    ];
    const MIDDLE: [&str; 16] =
        ["a", "e", "i", "o", "ani", "eri", "ivo", "ora", "uma", "ela", "ista", "ade", "enti", "omi", "uri", "axo"];
    const END: [&str; 16] =
        ["do", "na", "ris", "ton", "va", "x", "lia", "mond", "ro", "th", "ne", "ka", "sse", "vik", "lo", "tra"];
    format!("{}{}{}", dice.pick(&BEGIN), dice.pick(&MIDDLE), dice.pick(&END))
}

fn index_slots(world: &mut World) {
    world.slot_index = vec![NONE; world.categories.len() * world.attributes.len()];
    for (row, category) in world.categories.iter().enumerate() {
        for (place, slot) in category.slots.iter().enumerate() {
            world.slot_index[row * world.attributes.len() + slot.attribute] = place as u8;
        }
    }
}

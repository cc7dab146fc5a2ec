//! Spellings of measures: sellers use the base unit, shoppers also other units.

/// Spellings of a measure by sellers and by shoppers.
pub fn spellings(number: u32, unit: &str) -> (Vec<String>, Vec<String>) {
    let says = |joined: &str| vec![format!("{number} {unit}"), format!("{number}{unit}"), format!("{number} {joined}")];
    let one = if number == 1 { "" } else { "s" };
    match unit {
        "ml" => {
            let litres = decimal(number, 1000);
            let cl = decimal(number, 10);
            (
                vec![format!("{number} ml"), format!("{number}ml"), format!("{litres} l")],
                vec![format!("{litres} litre"), format!("{cl} cl"), format!("{number} ml")],
            )
        }
        "cm" => {
            let (mm, metres) = (u64::from(number) * 10, decimal(number, 100));
            (
                vec![format!("{number} cm"), format!("{number}cm"), format!("{mm} mm")],
                vec![format!("{number} centimetres"), format!("{metres} m"), format!("{number} cm")],
            )
        }
        "kg" => {
            let (grams, pounds) = (u64::from(number) * 1000, decimal((f64::from(number) * 22.046).round() as u32, 10));
            (
                vec![format!("{number} kg"), format!("{number}kg"), format!("{grams} g")],
                vec![format!("{number} kilo"), format!("{pounds} lbs"), format!("{number} kg")],
            )
        }
        "l" => (
            vec![format!("{number} l"), format!("{number}L"), format!("{number} litres")],
            vec![format!("{number} litre"), format!("{number} liters"), format!("{number} l")],
        ),
        "mah" => (
            vec![format!("{number} mAh"), format!("{number}mAh")],
            vec![format!("{}k mah", number / 1000), format!("{number} milliamp")],
        ),
        "inch" => (
            vec![format!("{number} inch"), format!("{number}\""), format!("{} cm", f64::from(number * 254) / 100.0)],
            vec![format!("{number} inches"), format!("{number}in")],
        ),
        "m²" => (
            vec![format!("{number} m²"), format!("{number} sqm")],
            vec![format!("{number} square metres"), format!("{number} sqm")],
        ),
        "pieces" => (
            vec![
                format!("pack of {number}"),
                format!("{number} pcs"),
                format!("{number}-pack"),
                format!("set of {number}"),
            ],
            vec![format!("{number} pieces"), format!("{number} of them"), format!("pack of {number}")],
        ),
        "persons" => (
            vec![format!("{number} person{one}"), format!("{number}P"), format!("{number}-man")],
            vec![format!("{number} people"), format!("{number} person{one}")],
        ),
        _ => (says(unit), says(unit)),
    }
}

/// Formats `number / by` with as many digits as needed.
fn decimal(number: u32, by: u32) -> String {
    format!("{}", f64::from(number) / f64::from(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measure_has_several_spellings() {
        let (says, asks) = spellings(1700, "ml");
        assert_eq!(says, ["1700 ml", "1700ml", "1.7 l"]);
        assert_eq!(asks, ["1.7 litre", "170 cl", "1700 ml"]);
        assert_eq!(spellings(5, "kg").1, ["5 kilo", "11 lbs", "5 kg"]);
        assert_eq!(spellings(120, "cm").1[1], "1.2 m");
    }
}

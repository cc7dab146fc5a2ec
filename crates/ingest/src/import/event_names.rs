//! Names of events in the logs of many shops. Takes a name, gives what it means. Never guesses: a name that is not listed
//! here is unknown, unless the user maps it.

use std::str::FromStr;

use souk_io::error::{Error, Result};
use souk_io::ubi::Action;

/// Event that a row of a log reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The search itself, without an item.
    Search,
    Action(Action),
}

/// Names of each kind of event, without case and punctuation, separated by spaces.
const NAMES: [(EventKind, &str); 5] = [
    (
        EventKind::Search,
        "search searched query searchquery searchperformed sitesearch viewsearchresults productssearched",
    ),
    (
        EventKind::Action(Action::Impression),
        "impression impressions imp imps impress view views viewed show shown seen display displayed expose exposed \
            exposure render rendered serve served listview listed viewitemlist productlistviewed itemimpression \
            productimpression searchimpression resultimpression searchresultimpression",
    ),
    (
        EventKind::Action(Action::Click),
        "click clicks clicked clickthrough clickthru tap open opened pdp pdpview viewpdp detail details detailview \
            viewdetail viewdetails productdetail productdetailview productclick productclicked productview \
            productviewed productpageview viewproduct itemclick itemclicked itemview itemviewed viewitem viewcontent \
            selectitem resultclick resultclicked searchclick searchresultclick",
    ),
    (
        EventKind::Action(Action::AddToCart),
        "cart carted atc add addtocart addedtocart addcart cartadd addtobasket addedtobasket basket basketadd \
            addtobag bag productadded productaddedtocart",
    ),
    (
        EventKind::Action(Action::Purchase),
        "buy bought order ordered orders orderplaced ordercompleted placeorder checkout checkoutcompleted purchase \
            purchased purchases transaction conversion sale sold pay paid payment",
    ),
];

/// Kind of an event by the name that a shop gives it.
pub fn event_kind(name: &str) -> Option<EventKind> {
    let normal: String = name.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    NAMES.into_iter().find(|(_, names)| names.split(' ').any(|known| known == normal)).map(|(kind, _)| kind)
}

/// Event name of a shop and its meaning, as given by `--events`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventName {
    pub name: String,
    pub kind: EventKind,
}

impl FromStr for EventName {
    type Err = Error;

    /// Parses `wishlist=add_to_cart`.
    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.split_once('=').and_then(|(name, action)| {
            let kind = match action.trim() {
                "search" => EventKind::Search,
                action => EventKind::Action(Action::ALL.into_iter().find(|known| known.name() == action)?),
            };
            Some(Self { name: name.trim().into(), kind })
        });
        parsed.filter(|event| !event.name.is_empty()).ok_or_else(|| {
            let problem = format!(
                "`{text}` does not map an event: use NAME=ACTION, where the action is impression, click, add_to_cart, \
                 purchase or search"
            );
            Error::input(problem)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_many_shops() {
        use Action::{AddToCart, Click, Impression, Purchase};
        for (names, action) in [
            (&["impression", "View", "shown", "view_item_list", "Product List Viewed"][..], Impression),
            (&["click", "pdp", "detail", "PDP-View", "select_item", "Product Viewed"], Click),
            (&["cart", "ATC", "add-to-cart", "add_to_cart", "addToCart", "Product Added"], AddToCart),
            (&["buy", "order", "checkout", "purchase", "transaction", "Order Completed"], Purchase),
        ] {
            for name in names {
                assert_eq!(event_kind(name), Some(EventKind::Action(action)), "{name}");
            }
        }
        assert_eq!(event_kind("view_search_results"), Some(EventKind::Search));
        for unknown in ["", "remove_from_cart", "wishlist", "begin_checkout", "refund", "1", "clickety"] {
            assert_eq!(event_kind(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn each_name_has_one_meaning_in_its_normal_form() {
        let all: Vec<&str> = NAMES.iter().flat_map(|(_, names)| names.split(' ')).collect();
        for (at, name) in all.iter().enumerate() {
            assert!(!all[..at].contains(name), "{name} twice");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase()), "{name}");
        }
    }

    #[test]
    fn users_map_other_names() {
        let event: EventName = "wishlist = add_to_cart".parse().unwrap();
        assert_eq!(event, EventName { name: "wishlist".into(), kind: EventKind::Action(Action::AddToCart) });
        for wrong in ["wishlist", "wishlist=like", "=click", ""] {
            let error = wrong.parse::<EventName>().unwrap_err().to_string();
            assert!(error.contains("use NAME=ACTION"), "{error}");
        }
    }
}

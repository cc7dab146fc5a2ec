//! Names that shops give to the columns of product files and search logs, most likely first. Compared without case,
//! spaces and punctuation, so `productId`, `product_id` and `Product ID` are one name.

/// Names of the columns of one field.
pub struct FieldNames {
    pub field: &'static str,
    /// Whole names, separated by spaces.
    pub names: &'static str,
    /// Words of longer names, such as `title` in `product_title_en`.
    pub words: &'static str,
}

impl FieldNames {
    pub fn all_names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.names.split(' ')
    }

    pub fn has_word(&self, word: &str) -> bool {
        self.words.split(' ').any(|known| known == word)
    }
}

pub const ITEM_FIELDS: [FieldNames; 6] = [
    FieldNames {
        field: "id",
        names: "id sku productid itemid asin uniqid uid articleid variantid productsku itemsku skuid pid productuid \
            objectid docid documentid listingid offerid goodsid gid productcode itemcode articlenumber articleno artnr \
            itemnumber productnumber partnumber stylenumber styleid modelnumber mpn gtin ean ean13 upc barcode isbn \
            uuid guid handle variantsku code productkey key number referenz ref reference",
        words: "id sku asin code gtin ean",
    },
    FieldNames {
        field: "title",
        names: "title producttitle productname itemtitle itemname name displayname articlename listingtitle posttitle \
            producttitel titel produktname bezeichnung nombre nom titre libelle headline product item shorttitle \
            seotitle label",
        words: "title name",
    },
    FieldNames {
        field: "text",
        names: "text description productdescription itemdescription longdescription fulldescription shortdescription desc \
            longdesc shortdesc body bodyhtml content details productdetails aboutproduct summary overview beschreibung \
            descripcion bulletpoints features productinformation",
        words: "description desc",
    },
    FieldNames {
        field: "category",
        names: "category categorypath categories categoryname productcategory productcategorytree categorytree \
            categoryhierarchy amazoncategoryandsubcategory breadcrumb breadcrumbs taxonomy googleproductcategory \
            producttype department maincategory kategorie categorie categoria section productclass class collection \
            subcategory type",
        words: "category categories",
    },
    FieldNames {
        field: "brand",
        names: "brand brandname productbrand manufacturer manufacturername maker make vendor vendorname supplier producer \
            marke hersteller marque marca mfgbrandname designer label company",
        words: "brand manufacturer",
    },
    FieldNames {
        field: "price",
        names: "price saleprice currentprice sellingprice finalprice discountedprice offerprice unitprice variantprice \
            regularprice listprice retailprice productprice itemprice priceusd priceeur pricegbp preis precio prix \
            prezzo msrp amount cost",
        words: "price",
    },
];

pub const LOG_FIELDS: [FieldNames; 11] = [
    FieldNames {
        field: "time",
        names: "timestamp time eventtime eventtimestamp datetime ts date createdat clicktime clicktimestamp eventdate \
            servertime utctime loggedat occurredat timelocal unixtime epoch eventat createdtime logtime zeit zeitpunkt \
            datum",
        words: "timestamp time date",
    },
    FieldNames {
        field: "session",
        names: "session sessionid sid sessionkey visit visitid visitor visitorid fullvisitorid user userid uid username \
            client clientid customer customerid shopper shopperid anonymousid anonid cookie cookieid deviceid device \
            member memberid guid searchid requestid queryid searchsessionid",
        words: "session visitor user customer cookie",
    },
    FieldNames {
        field: "query",
        names: "query searchterm searchquery userquery querytext searchtext searchphrase searchstring searchkeyword \
            searchkeywords keyword keywords term terms q search phrase rawquery querystring searchedterm \
            suchbegriff suchanfrage",
        words: "query keyword keywords term search",
    },
    FieldNames {
        field: "item",
        names: "itemid productid sku item product asin articleid variantid objectid docid documentid listingid offerid \
            goodsid skuid itemsku productsku productcode itemcode articlenumber artnr pid uniqid productuid \
            clickeditem clickedproduct clickedid clickedsku resultid hitid ean gtin upc contentid",
        words: "item product sku asin",
    },
    FieldNames {
        field: "event",
        names: "event eventtype eventname action actionname actiontype useraction interaction interactiontype activity \
            behavior behaviour behaviortype eventaction type kind",
        words: "event action",
    },
    FieldNames {
        field: "position",
        names: "position rank pos ranking ordinal slot itemposition productposition resultposition clickposition clickrank \
            resultrank listposition displayposition itemrank index place",
        words: "position rank",
    },
    FieldNames {
        field: "query_time",
        names: "querytime searchtime querytimestamp searchtimestamp searchedat",
        words: "",
    },
    FieldNames { field: "item_title", names: "productname producttitle itemname itemtitle title", words: "" },
    FieldNames { field: "click", names: "clicked isclick isclicked click wasclicked", words: "" },
    FieldNames {
        field: "add_to_cart",
        names: "addedtocart isaddedtocart addtocart isaddtocart carted atc cart",
        words: "",
    },
    FieldNames { field: "purchase", names: "purchased ispurchase ispurchased purchase bought ordered", words: "" },
];

pub const PAIR_FIELDS: [FieldNames; 3] = [
    FieldNames {
        field: "query",
        names: "query anchor question searchterm searchquery search sentence1 input",
        words: "",
    },
    FieldNames {
        field: "positive",
        names: "positive positives pos item product title text document doc passage answer response context sentence2",
        words: "",
    },
    FieldNames { field: "negative", names: "negative negatives neg hardnegative hardnegatives", words: "" },
];

/// Letters and digits of a name, in lower case.
pub fn normal(name: &str) -> String {
    name.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Words of a name: split at punctuation and where a capital follows a small letter.
pub fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for letter in name.chars() {
        if !letter.is_alphanumeric() || was_small && letter.is_uppercase() {
            words.push(String::new());
        }
        if letter.is_alphanumeric() {
            words.last_mut().expect("it begins with one").extend(letter.to_lowercase());
        }
        was_small = letter.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Place of a field in lists; fields of the user's own come last.
pub fn place(field: &str) -> usize {
    ITEM_FIELDS
        .iter()
        .chain(&LOG_FIELDS)
        .chain(&PAIR_FIELDS)
        .position(|names| names.field == field)
        .unwrap_or(usize::MAX)
}

/// Whether some field has a column of this name.
pub fn is_known(name: &str) -> bool {
    let name = normal(name);
    ITEM_FIELDS.iter().chain(&LOG_FIELDS).chain(&PAIR_FIELDS).any(|field| field.all_names().any(|known| known == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_case_and_punctuation() {
        for name in ["productId", "product_id", "Product ID", "PRODUCT-ID"] {
            assert_eq!(normal(name), "productid");
            assert!(is_known(name));
        }
        assert!(is_known("_id") && is_known("Body (HTML)") && !is_known("B00X12") && !is_known(""));
        assert_eq!(words("productTitle_EN (long)"), ["product", "title", "en", "long"]);
        assert_eq!(words("SKU"), ["sku"]);
    }

    #[test]
    fn all_names_are_in_normal_form_and_unique_within_a_field() {
        for field in ITEM_FIELDS.iter().chain(&LOG_FIELDS).chain(&PAIR_FIELDS) {
            let mut seen = std::collections::HashSet::new();
            for name in field.all_names() {
                assert!(name == normal(name) && !name.is_empty(), "{}: {name}", field.field);
                assert!(seen.insert(name), "{}: {name} twice", field.field);
            }
        }
    }
}

//! Building blocks of HTML reports. Everything is in one file: no scripts, no external resources.

const STYLE: &str = include_str!("page.css");

/// A complete page with a table of contents. Sections have an id, a name and content; `heading`, `about` and contents are HTML.
pub fn document(
    title: &str,
    heading: &str,
    about: &str,
    sections: &[(impl AsRef<str>, impl AsRef<str>, String)],
) -> String {
    let (mut links, mut body) = (String::new(), String::new());
    for (id, name, html) in sections {
        let (id, name) = (id.as_ref(), escape(name.as_ref()));
        links += &format!("<a href=\"#{id}\">{name}</a>\n");
        body += &format!("<section id=\"{id}\">\n<h2>{name}</h2>\n{html}</section>\n");
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>{heading}</h1>\n{about}<nav aria-label=\"Sections\">\n{links}</nav>\n</header>\n\
         <main>\n{body}</main>\n</body>\n</html>\n",
        title = escape(title),
    )
}

/// A table that scrolls horizontally on narrow screens.
pub fn table(caption: &str, head: &str, rows: &str) -> String {
    let label = escape(caption);
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">\n<table>\n\
         <caption>{label}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n"
    )
}

pub fn figure(title: &str, html: &str) -> String {
    format!("<figure>\n<figcaption>{}</figcaption>\n{html}</figure>\n", escape(title))
}

/// Text in an own bidirectional context, so right-to-left text does not reorder its surroundings.
pub fn bdi(text: &str) -> String {
    format!("<bdi>{}</bdi>", escape(text))
}

pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // not allowed in HTML
            letter if letter.is_control() && !letter.is_whitespace() => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

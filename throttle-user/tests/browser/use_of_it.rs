//! Whether the page can be read and used: widths, colours, keys.

use crate::{chromium::Shown, made::Made};

const WIDE: (u32, u32) = (1280, 900);
const NARROW: (u32, u32) = (390, 844);

/// Contrast of two colours of the page, as WCAG 2 defines it.
fn contrast(page: &Shown, text: &str, back: &str) -> f64 {
    page.value(&format!(
        "(() => {{ const light = (name) => {{ const hex = colour(name); \
         const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255) \
         .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)); \
         return 0.2126 * r + 0.7152 * g + 0.0722 * b; }}; \
         const [one, other] = [light({text:?}), light({back:?})].sort((a, b) => b - a); return (one + 0.05) / (other + 0.05); }})()"
    ))
}

#[test]
fn browser_nothing_is_wider_than_the_window_and_no_text_lies_over_another() {
    let made = Made::two_limits();
    for (size, name) in [(WIDE, "1280"), (NARROW, "390")] {
        let page = Shown::open(&made.page, size);
        let (scroll, inner): (f64, f64) = page.value("[document.documentElement.scrollWidth, innerWidth]");
        assert!(scroll <= inner, "{name}: {scroll} of {inner}");
        // The table of limits fits where there is room; on a narrow screen it scrolls by itself.
        let (table, room): (f64, f64) = page.value(
            "[document.getElementById('summary').scrollWidth, document.getElementById('summary').parentElement.clientWidth]",
        );
        assert!(table <= room || size == NARROW, "{name}: the table of limits is {table} wide, {room} there are");
        // Blocks of text of one parent do not overlap.
        let over: Vec<String> = page.value(
            "[...document.querySelectorAll('p, h1, h2, h3, dt, dd, button, figcaption, li, figure, .timeline, .details')]\
             .filter((element) => element.checkVisibility() && element.getBoundingClientRect().height > 0)\
             .flatMap((element, i, all) => all.slice(i + 1).filter((other) => !element.contains(other) && !other.contains(element))\
             .filter((other) => { const a = element.getBoundingClientRect(), b = other.getBoundingClientRect(); \
               return a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1; })\
             .map((other) => `${element.textContent.slice(0, 40)} / ${other.textContent.slice(0, 40)}`))",
        );
        assert!(over.is_empty(), "{name}: {over:#?}");
        // Labels inside of the figures.
        let labels: Vec<String> = page.value(
            "[...document.querySelectorAll('.chart')].flatMap((chart) => { \
             const texts = [...chart.querySelectorAll('svg text')].map((text) => [text.textContent, text.getBoundingClientRect()]); \
             return texts.flatMap(([words, a], i) => texts.slice(i + 1).filter(([, b]) => \
               a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)\
               .map(([others]) => `${chart.id}: ${words} / ${others}`)); })",
        );
        assert!(labels.is_empty(), "{name}: {labels:#?}");
        page.picture(name);
        page.assert_quiet();
    }
}

#[test]
fn browser_text_can_be_read_on_light_and_on_dark() {
    let made = Made::two_limits();
    let page = Shown::open(&made.page, WIDE);
    let mut backs = Vec::new();
    for choice in ["light", "dark"] {
        page.click("#theme");
        assert_eq!(page.text("#theme"), format!("Colours: {choice}"));
        for text in ["text", "quiet", "accent"] {
            for back in ["back", "panel"] {
                let ratio = contrast(&page, text, back);
                assert!(ratio >= 4.5, "{text} on {back}, {choice}: {ratio:.2}");
            }
        }
        // Fills that mean something stand out from the page.
        for fill in ["oncpu", "own", "waiting", "unknown"] {
            let ratio = contrast(&page, fill, "back");
            assert!(ratio >= 3.0, "{fill}, {choice}: {ratio:.2}");
        }
        backs.push(page.value::<String>("getComputedStyle(document.body).backgroundColor"));
        page.picture(choice);
    }
    assert_ne!(backs[0], backs[1]);
    page.assert_quiet();
}

#[test]
fn browser_everything_can_be_reached_by_the_tab_key() {
    let made = Made::two_limits();
    let page = Shown::open(&made.page, WIDE);
    let wanted: Vec<String> = page.value(
        "[...document.querySelectorAll('button:not([hidden]), [tabindex], summary')].filter((element) => element.checkVisibility())\
         .map((element, i) => { element.dataset.order = i; return String(i); })",
    );
    let mut reached = Vec::new();
    for _ in 0..wanted.len() * 2 {
        page.press("Tab");
        let order: Option<String> = page.value("document.activeElement?.dataset.order ?? null");
        reached.extend(order);
        if wanted.iter().all(|order| reached.contains(order)) {
            break;
        }
    }
    let missed: Vec<_> = wanted.iter().filter(|order| !reached.contains(order)).collect();
    assert!(missed.is_empty(), "{missed:?}");
    // A request is chosen by Enter on its number, and the timeline goes there.
    page.run("document.querySelector('#requests tbody button').focus()");
    page.press("Enter");
    let (selected, verdict): (String, String) = page.value(
        "[document.querySelector('#requests tr').ariaSelected ?? '', document.getElementById('request-verdict').innerText]",
    );
    assert!(verdict.starts_with("Verdict on request "), "{selected} {verdict}");
    page.assert_quiet();
}
